"""Dropout's mask: its statistics, and that it is a function of seed and place alone."""
import numpy as np
import pytest

from tests.znn.runtime.threads import for_one_thread_and_all
from znn.runtime.dropout import CHUNK, dropout

SHAPE = (2, 5, 3, 61, 83)


def kept(seed, p=0.5, shape=SHAPE):
    """The mask, of an input of ones."""
    return dropout(np.ones(shape, np.float32), seed, p) != 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("p", [0.01, 0.25, 0.5, 0.9])
def test_what_is_kept_is_scaled(p, dtype):
    x = np.random.default_rng(0).uniform(1, 2, SHAPE).astype(dtype)
    y = dropout(x, 7, p)
    assert y.dtype == dtype and y.shape == x.shape
    assert np.array_equal(y, np.where(kept(7, p), x * dtype(1 / (1 - p)), 0))


@pytest.mark.parametrize("p", [0.01, 0.25, 0.5, 0.9])
def test_the_share_that_is_dropped(p):
    """Within five standard deviations, of all voxels and of those at each place of a vector."""
    n = 1 << 20
    dropped = ~kept(3, p, (n // 16, 16))
    spread = np.sqrt(p * (1 - p))
    assert abs(dropped.mean() - p) < 5 * spread / np.sqrt(n)
    assert np.abs(dropped.mean(0) - p).max() < 5 * spread / np.sqrt(n / 16)


@pytest.mark.parametrize("distance", [1, 2, 16, 83, CHUNK, CHUNK + 1])
def test_voxels_are_independent(distance):
    """Neighbours agree half the time, within five standard deviations; so do chunks."""
    mask = kept(11, 0.5, (1 << 20,))
    agree = mask[distance:] == mask[:-distance]
    assert abs(agree.mean() - 0.5) < 2.5 / np.sqrt(agree.size)


@pytest.mark.parametrize("other", [1, 2, 1 << 31, 1 << 32, 1 << 62, 0x9E3779B97F4A7C15])
def test_seeds_are_independent(other):
    """Seeds that differ by a bit, or by what chunks differ by, have masks that agree half the time."""
    agree = kept(0, 0.5, (1 << 20,)) == kept(other, 0.5, (1 << 20,))
    assert abs(agree.mean() - 0.5) < 2.5 / np.sqrt(agree.size)


def test_a_seed_gives_its_mask_again():
    assert np.array_equal(kept(2**63 - 2), kept(2**63 - 2)) and not np.array_equal(kept(1), kept(2))


def test_the_mask_does_not_depend_on_what_follows():
    assert np.array_equal(kept(5, 0.5, (3 * CHUNK + 17,)), kept(5, 0.5, (9 * CHUNK,))[:3 * CHUNK + 17])


def test_same_bits_whatever_the_number_of_threads():
    one, all_ = for_one_thread_and_all(lambda: dropout(np.random.default_rng(1).standard_normal(SHAPE), 5, 0.3))
    assert np.array_equal(one, all_)


def test_nothing_and_everything():
    x = np.random.default_rng(2).standard_normal(SHAPE).astype(np.float32)
    assert np.array_equal(dropout(x, 1, 0.0), x)
    assert not dropout(x, 1, 1.0).any()


def hashed(seed, i):
    """The 32 bits of voxel i, by the definition in whole numbers."""
    key = (seed + i // CHUNK * 0x9E3779B97F4A7C15) % 2**64
    key = (key ^ key >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    key = (key ^ key >> 27) * 0x94D049BB133111EB % 2**64
    key ^= key >> 31
    h = i % CHUNK
    for half in (key % 2**32, key >> 32):
        h ^= half
        h = (h ^ h >> 16) * 0x85EBCA6B % 2**32
        h = (h ^ h >> 13) * 0xC2B2AE35 % 2**32
        h ^= h >> 16
    return h


@pytest.mark.parametrize("seed", [0, 12345, 2**63 - 2])
def test_the_mask_is_what_is_written(seed):
    """A run that is gone on with needs the masks that it began with: they never change."""
    mask = kept(seed, 0.3, (2 * CHUNK + 50,))
    assert all(mask[i] == (hashed(seed, i) >= round(0.3 * 2**32)) for i in range(0, len(mask), 7))

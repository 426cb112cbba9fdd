import contextlib
import itertools
import multiprocessing
import os
import pickle
import signal
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from data import (
    IGNORE,
    Augmentation,
    PatchSampler,
    Roi,
    Source,
    Standardisation,
    Volume,
    patches,
    standardised,
    write_volume,
)
from data.errors import MissingFile, NotFinite, NoValidPosition, WrongSetting
from data.orientation import Geometry, Orientation
from tests.data.stacks import OFFSET, RESOLUTION, checkered, numbered, source

SHAPE = (7, 61, 83)


def begin_of(patch, shape):
    """Where an unturned patch of a numbered volume was cut."""
    return tuple(int(i) for i in np.unravel_index(int(patch.image[0, 0, 0, 0]), shape))


def test_patch_is_cut_from_the_volume_and_the_target_is_its_centre():
    sampler = PatchSampler([source(SHAPE)], (3, 21, 30), (1, 11, 9), seed=3)
    image, labels = numbered(SHAPE).read(), checkered(SHAPE).read()
    for patch in map(sampler.draw, range(20)):
        z, y, x = begin_of(patch, SHAPE)
        assert patch.image.shape == (1, 3, 21, 30) and patch.image.dtype == np.float32
        np.testing.assert_array_equal(patch.image[0], image[z:z + 3, y:y + 21, x:x + 30])
        np.testing.assert_array_equal(patch.target, labels[z + 1:z + 2, y + 5:y + 16, x + 10:x + 19])
        assert f"({z + 1}, {y + 5}, {x + 10})" in patch.where and "numbered" in patch.where


@pytest.mark.parametrize("mirror", [False, True])
def test_every_valid_position_is_drawn_equally_often(mirror):
    shape, size = (2, 4, 5), (2, 3, 3)
    sampler = PatchSampler([source(shape)], size, (1, 1, 2), seed=0, mirror=mirror)
    extent = (1, 2, 3) if not mirror else (2, 4, 4)
    counts = Counter(sampler.draw(step).where.split(" with")[0] for step in range(800))
    positions = list(itertools.product(*map(range, extent)))
    assert sampler.position_counts() == [len(positions)] and len(counts) == len(positions)
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4


@pytest.mark.parametrize("more, count", [(-1, 0), (0, 1), (1, 8)])
def test_patch_smaller_than_as_large_as_and_larger_than_the_volume(more, count):
    shape = tuple(n + more for n in (3, 21, 30))
    if count == 0:
        with pytest.raises(NoValidPosition, match=r"image \(2, 20, 29\).*patch input \(3, 21, 30\).*mirror=true"):
            PatchSampler([source(shape)], (3, 21, 30), (1, 11, 9))
        return
    sampler = PatchSampler([source(shape)], (3, 21, 30), (1, 11, 9))
    assert sampler.position_counts() == [count]
    drawn = {begin_of(sampler.draw(step), shape) for step in range(100)}
    assert drawn == set(itertools.product(range(more + 1), repeat=3))


def test_stacks_count_by_their_positions():
    large, small = source((3, 20, 20)), Source(numbered((2, 10, 10)), checkered((2, 10, 10)))
    sampler = PatchSampler([small, large], (2, 9, 9), (1, 1, 1), seed=1)
    assert sampler.position_counts() == [4, 288]
    third = sum("(0," in sampler.draw(step).where for step in range(50))
    assert 0 < third < 50
    drawn = [sampler._place(sampler.geometry, None, np.random.default_rng(i))[0] for i in range(3000)]
    assert stats.binomtest(sum(d is sampler.stacks[0] for d in drawn), 3000, 4 / 292).pvalue > 1e-4


def test_labels_smaller_than_raw_use_real_context():
    labels = checkered((1, 5, 5), (OFFSET[0] + 3 * 40, OFFSET[1] + 30 * 4, OFFSET[2] + 40 * 3.5))
    sampler = PatchSampler([Source(numbered(SHAPE), labels)], (3, 21, 21), (1, 5, 5))
    assert sampler.position_counts() == [1]
    patch = sampler.draw(0)
    assert begin_of(patch, SHAPE) == (2, 22, 32)
    np.testing.assert_array_equal(patch.target, labels.read())


def test_mirrored_context():
    sampler = PatchSampler([source((1, 6, 7))], (3, 8, 9), (1, 6, 7), mirror=True)
    patch, image = sampler.draw(0), numbered((1, 6, 7)).read()
    np.testing.assert_array_equal(patch.image[0], np.pad(np.pad(image, ((1, 1), (0, 0), (0, 0)), mode="edge"),
                                                         ((0, 0), (1, 1), (1, 1)), mode="reflect"))
    np.testing.assert_array_equal(patch.target, checkered((1, 6, 7)).read())


def test_nothing_outside_of_the_roi_is_read():
    roi = Roi((2, 10, 20), (3, 30, 40))
    poisoned = np.full(SHAPE, np.nan, np.float32)
    poisoned[roi.slices] = 1.0
    one = Source(Volume.from_array(poisoned, RESOLUTION, OFFSET), checkered(SHAPE), roi=roi)
    sampler = PatchSampler([one], (3, 21, 21), (1, 5, 5), Augmentation.serial_section(), mirror=True, memory_bytes=0)
    for step in range(30):
        assert np.isfinite(sampler.draw(step).image).all()


def test_positions_without_a_label_are_passed_over():
    mask = np.ones(SHAPE, np.uint8)
    mask[3, 30, 40] = 0
    one = source(SHAPE, mask=Volume.from_array(mask, RESOLUTION, OFFSET))
    sampler = PatchSampler([one], (3, 21, 21), (1, 15, 15), Augmentation.serial_section())
    assert all((sampler.draw(step).target != IGNORE).sum() == 1 for step in range(10))
    nothing = source(SHAPE, mask=Volume.from_array(np.ones(SHAPE, np.uint8), RESOLUTION, OFFSET))
    with pytest.raises(NoValidPosition, match="labels: no labelled voxel"):
        PatchSampler([nothing], (3, 21, 21), (1, 1, 1)).draw(0)


def test_second_channel_is_the_scaled_map():
    rising = np.linspace(0, 0.5, 7 * 61 * 83, dtype=np.float32).reshape(SHAPE)
    one = source(SHAPE).with_map(Volume.from_array(rising, RESOLUTION, OFFSET))
    for how, factor in (("fixed", 1.0), ("stack", 2.0)):
        patch = PatchSampler([one], (3, 21, 30), (1, 11, 9), Augmentation(), recursion_scaling=how).draw(5)
        expected = factor * patch.image[0] / (7 * 61 * 83 - 1) - 1
        np.testing.assert_allclose(patch.image[1], expected, atol=1e-5)
    with pytest.raises(WrongSetting, match="found both"):
        PatchSampler([one, source(SHAPE)], (3, 21, 30), (1, 11, 9))


@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_a_patch_depends_on_seed_and_step_only(memory):
    def make(seed):
        return PatchSampler([source(SHAPE), source((3, 40, 50))], (3, 21, 30), (1, 11, 9),
                            Augmentation.serial_section(), seed=seed, memory_bytes=memory)

    forward, backward = make(7), make(7)
    one = [forward.draw(step) for step in range(6)]
    other = [backward.draw(step) for step in reversed(range(6))][::-1]
    for a, b in zip(one, other):
        np.testing.assert_array_equal(a.image, b.image)
        np.testing.assert_array_equal(a.target, b.target)
        assert a.where == b.where
    assert len({p.where for p in one}) > 3
    assert any(make(8).draw(step).where != one[step].where for step in range(6))


def test_a_patch_may_be_written_to():
    sampler = PatchSampler([source(SHAPE)], (1, 61, 83), (1, 61, 83))
    first = sampler.draw(0)
    first.image[:], first.target[:] = -1, 9
    assert not (sampler.draw(0).image == -1).any() and not (sampler.draw(0).target == 9).any()


def file_source(path):
    grey = np.random.default_rng(0).integers(0, 256, SHAPE, np.uint8)
    write_volume(path, {"volumes/raw": (grey, {}), "volumes/labels/membrane": (grey < 60, {})}, RESOLUTION, OFFSET)
    return Source(standardised(Volume.open(path), Standardisation()), Volume.open(path, "volumes/labels/membrane"))


def test_workers_give_the_same_patches(tmp_path):
    sampler = PatchSampler([file_source(tmp_path / "v.h5")], (3, 21, 30), (1, 11, 9), Augmentation.serial_section(), 4)
    alone = list(patches(sampler, 3, 23, workers=0))
    together = list(patches(sampler, 3, 23, workers=2))
    assert [p.where for p in together] == [p.where for p in alone] and len(alone) == 20
    for a, b in zip(alone, together):
        np.testing.assert_array_equal(a.image, b.image)
        np.testing.assert_array_equal(a.target, b.target)


def test_workers_tell_what_went_wrong_and_end_when_told(tmp_path):
    one = file_source(tmp_path / "v.h5")
    sampler = PatchSampler([one], (3, 21, 30), (1, 11, 9), memory_bytes=0)
    stream = patches(sampler, 0, 10 ** 6, workers=1)
    assert next(stream).where == sampler.draw(0).where
    stream.close()
    (tmp_path / "v.h5").unlink()
    with pytest.raises(MissingFile, match=r"v\.h5"):
        list(patches(pickle.loads(pickle.dumps(sampler)), 0, 3, workers=1))


def test_a_worker_leaves_a_signal_to_its_group_to_the_parent(tmp_path):
    sampler = PatchSampler([file_source(tmp_path / "v.h5")], (3, 21, 30), (1, 11, 9))
    with contextlib.closing(patches(sampler, 0, 10 ** 6, workers=1)) as stream:
        drawn = [next(stream).where]
        worker, = multiprocessing.active_children()
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(worker.pid, number)
        drawn += [next(stream).where for _ in range(20)]
        assert worker.is_alive()
    assert drawn == [sampler.draw(step).where for step in range(21)] and not multiprocessing.active_children()


def test_nan_in_the_image_stops_with_its_place():
    values = np.zeros(SHAPE, np.float32)
    values[3, 30, 40] = np.nan
    one = Source(Volume.from_array(values, RESOLUTION, OFFSET, "stack.h5:volumes/raw"), checkered(SHAPE))
    with pytest.raises(NotFinite, match=r"stack\.h5:volumes/raw.*\(3, 30, 40\)"):
        PatchSampler([one], (7, 61, 83), (1, 1, 1)).draw(0)


def test_settings_that_have_no_meaning():
    with pytest.raises(WrongSetting, match="no larger than the input"):
        PatchSampler([source(SHAPE)], (3, 21, 30), (1, 22, 9))
    with pytest.raises(WrongSetting, match="recursion_scaling"):
        PatchSampler([source(SHAPE)], (3, 21, 30), (1, 11, 9), recursion_scaling="none")
    with pytest.raises(NoValidPosition, match="at least one source"):
        PatchSampler([], (3, 21, 30), (1, 11, 9))
    with pytest.raises(NoValidPosition, match="transpose_xy_p=0"):
        PatchSampler([source((3, 21, 83))], (3, 21, 30), (1, 11, 9), Augmentation())


sizes = st.tuples(*[st.integers(1, 6)] * 3)
orientations = st.builds(Orientation, st.tuples(*[st.booleans()] * 3), st.booleans())


@settings(max_examples=60, deadline=None)
@given(sizes, orientations)
def test_an_orientation_is_an_exact_permutation_and_can_be_undone(shape, orientation):
    array = np.arange(2 * np.prod(shape)).reshape(2, *shape)
    turned = orientation.apply(array)
    np.testing.assert_array_equal(orientation.undo(turned), array)
    assert sorted(turned.ravel()) == sorted(array.ravel())


@settings(max_examples=80, deadline=None)
@given(sizes, sizes, orientations)
def test_output_stays_at_its_place_in_the_input_however_turned(output, extra, orientation):
    """Even fields of view have one voxel more behind the output than before it, before and after turning."""
    geometry = Geometry.centred(tuple(a + b - 1 for a, b in zip(output, extra)), output)
    read = geometry.oriented(orientation)
    numbers = np.arange(np.prod(read.input_shape)).reshape(read.input_shape)
    turned = orientation.apply(numbers)
    assert turned.shape == geometry.input_shape
    source_roi, output_roi = read.rois((0, 0, 0))
    assert source_roi.contains(output_roi)
    expected = turned[Roi(geometry.before, geometry.output_shape).slices]
    np.testing.assert_array_equal(orientation.apply(numbers[output_roi.slices]), expected)

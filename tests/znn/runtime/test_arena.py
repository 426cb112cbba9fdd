"""Memory that is used again: never twice at a time, and never more of it than is said."""
import gc
import itertools
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from znn.runtime.arena import LINE, SPARE, Arena, size_class

BYTE, FLOAT = np.dtype(np.uint8), np.dtype(np.float32)
MANY = 1 << 20  # well above what is left to the C library


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64, np.int64])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5, 7), (2, 3, 61, 83), (5, 0, 3), (1 << 17,), (7, 501, 333)],
                         ids=str)
def test_arrays_are_what_was_asked_for(shape, dtype):
    a = Arena().empty(shape, np.dtype(dtype))
    assert a.shape == shape and a.dtype == dtype
    assert a.flags.c_contiguous and a.flags.writeable and (a.size == 0 or a.ctypes.data % LINE == 0)


@given(st.integers(1, 1 << 40))
def test_size_classes_hold_what_is_asked_for_and_little_more(size):
    assert size <= size_class(size) <= max(1.125 * size + 1, size + LINE)
    assert size_class(size_class(size)) == size_class(size)


def test_a_block_is_used_again():
    arena = Arena()
    a = arena.empty((MANY,), BYTE)
    where = a.ctypes.data
    assert arena.idle() == 0
    del a
    assert arena.idle() == MANY
    b = arena.empty((MANY // 4 - 100,), FLOAT)  # a little smaller, of another type
    assert b.ctypes.data == where and arena.idle() == 0


def test_blocks_that_are_much_larger_are_left_alone():
    arena = Arena()
    arena.empty((4 * MANY,), BYTE)
    assert arena.idle() == 4 * MANY
    a = arena.empty((MANY,), BYTE)
    assert arena.idle() == 4 * MANY
    del a
    assert arena.idle() == 5 * MANY


def test_the_best_fitting_block_is_taken():
    arena = Arena()
    arrays = {n: arena.empty((n * MANY // 4,), BYTE) for n in (7, 4, 5)}
    where = {n: a.ctypes.data for n, a in arrays.items()}
    arrays.clear()
    assert arena.empty((MANY,), BYTE).ctypes.data == where[4]
    first = arena.empty((MANY,), BYTE)
    second = arena.empty((MANY,), BYTE)
    assert (first.ctypes.data, second.ctypes.data) == (where[4], where[5])


@pytest.mark.parametrize("view", [
    lambda a: a[5:9], lambda a: a.reshape(2, -1).T, lambda a: a.view(np.int32)[::7], lambda a: np.asarray(a[3:]),
    memoryview, lambda a: torch.from_numpy(a)[10:].numpy()],
    ids=["slice", "transpose", "type", "asarray", "memoryview", "torch"])
def test_a_view_keeps_its_block(view):
    arena = Arena()
    a = arena.empty((MANY,), FLOAT)
    a[:] = 7
    kept = view(a)
    before = np.array(kept)
    del a
    assert arena.idle() == 0
    other = arena.empty((MANY,), FLOAT)
    other[:] = 1
    assert np.array_equal(np.array(kept), before)
    del kept
    assert arena.idle() == 4 * MANY


def test_small_arrays_are_not_kept():
    arena = Arena()
    arena.empty((100,), FLOAT)
    assert arena.idle() == 0


def test_trim_gives_everything_back():
    arena = Arena()
    a, b = arena.empty((MANY,), BYTE), arena.empty((MANY,), BYTE)
    a[:], where = 3, a.ctypes.data
    del b
    assert arena.idle() == MANY
    arena.trim()
    assert arena.idle() == 0 and (a == 3).all()
    del a
    assert arena.idle() == MANY and arena.empty((MANY,), BYTE).ctypes.data == where


def test_memory_is_limited_by_what_was_in_use():
    """At most 16 MiB at a time, so 32 are held; then the blocks go that are idle for longest."""
    arena = Arena()
    four = [arena.empty((4 * MANY,), BYTE) for _ in range(4)]
    four.clear()
    large = arena.empty((16 * MANY,), BYTE)
    where = large.ctypes.data
    del large
    assert arena.idle() == SPARE * 16 * MANY
    small = [arena.empty((MANY,), BYTE) for _ in range(8)]
    assert arena.idle() + sum(a.nbytes for a in small) == SPARE * 16 * MANY
    assert arena.empty((16 * MANY,), BYTE).ctypes.data == where


def test_trim_forgets_how_much_was_in_use():
    arena = Arena()
    arena.empty((64 * MANY,), BYTE)
    arena.trim()
    for n in (16, 1, 4):
        arena.empty((n * MANY,), BYTE)
    assert arena.idle() == 21 * MANY
    several = [arena.empty((MANY // 4,), BYTE) for _ in range(48)]
    assert arena.idle() + sum(a.nbytes for a in several) <= SPARE * 16 * MANY


def test_a_lower_limit_for_a_while():
    arena = Arena()
    kept = arena.empty((8 * MANY,), BYTE)
    arena.empty((16 * MANY,), BYTE)
    arena.empty((4 * MANY,), BYTE)
    assert arena.idle() == 20 * MANY
    with arena.at_most(12 * MANY):
        assert arena.idle() == 4 * MANY  # the block that is idle for longest went first
        arena.empty((MANY,), BYTE)
        assert arena.idle() + kept.nbytes <= 12 * MANY
    arena.empty((16 * MANY,), BYTE)
    assert arena.idle() > 16 * MANY


def test_arrays_in_reference_cycles_come_back():
    arena = Arena()
    cycle = [arena.empty((MANY,), BYTE)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert arena.idle() == MANY


class Checked:
    """Live arrays, each filled with a number of its own; wrong as soon as two share memory."""

    def __init__(self, arena, rng, first):
        self.arena, self.rng, self.number, self.live = arena, rng, first, []

    def step(self):
        """Let some arrays go after checking them, and ask for another."""
        while self.live and self.rng.random() < 0.45:
            array, number = self.live.pop(self.rng.integers(len(self.live)))
            assert (array == number).all()
        array = self.arena.empty((int(self.rng.integers(1, 80_000)),), FLOAT)
        self.number += 1
        array[:] = self.number
        self.live.append((array, self.number))

    def finish(self):
        for array, number in self.live:
            assert (array == number).all()
        self.live.clear()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_no_memory_is_used_twice_at_a_time(seed):
    arena = Arena()
    checked = Checked(arena, np.random.default_rng(seed), 0)
    for n in range(60):
        checked.step()
        if n % 25 == 24:
            arena.trim()
    spans = sorted((a.ctypes.data, a.ctypes.data + a.nbytes) for a, _ in checked.live)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    checked.finish()


def test_several_threads_share_an_arena():
    arena, failed = Arena(), []

    def work(number):
        try:
            checked = Checked(arena, np.random.default_rng(number), 10_000 * number)
            for _ in range(300):
                checked.step()
            checked.finish()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed and arena.idle() > 0


def test_an_array_may_come_back_in_another_thread():
    arena = Arena()
    box = [arena.empty((MANY,), BYTE)]
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert arena.idle() == MANY

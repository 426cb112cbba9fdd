import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import DataError, Roi, blocks

ints = st.integers(-9, 9)
sizes = st.integers(1, 9)
triples = st.tuples(ints, ints, ints)
shapes = st.tuples(sizes, sizes, sizes)
rois = st.builds(Roi, triples, shapes)


def voxels(roi):
    """The set of voxels of a region, spelled out."""
    return {(z, y, x) for z in range(roi.begin[0], roi.end[0]) for y in range(roi.begin[1], roi.end[1])
            for x in range(roi.begin[2], roi.end[2])}


def test_small_example():
    roi = Roi((1, 2, 3), (4, 5, 6))
    assert roi.begin == (1, 2, 3) and roi.end == (5, 7, 9) and roi.size == 120
    assert roi.slices == (slice(1, 5), slice(2, 7), slice(3, 9))
    assert roi.grow((0, 1, 2), (3, 4, 5)) == Roi((1, 1, 1), (7, 10, 13))
    assert roi.shift((-1, -2, -3)) == Roi((0, 0, 0), (4, 5, 6))


@settings(max_examples=60, deadline=None)
@given(rois, rois)
def test_intersect_and_contains_are_those_of_sets(a, b):
    assert voxels(a.intersect(b)) == voxels(a) & voxels(b)
    assert a.contains(b) == (voxels(b) <= voxels(a))


@settings(max_examples=60, deadline=None)
@given(rois, shapes, shapes)
def test_growing_back_is_the_same(roi, low, high):
    assert roi.grow(low, high).grow([-v for v in low], [-v for v in high]) == roi


def test_shrinking_past_nothing_is_empty():
    assert Roi((0, 0, 0), (2, 2, 2)).grow((-3, 0, 0), (0, 0, 0)).size == 0


@pytest.mark.parametrize("wrong", [(1, 2), (1, 2, 3, 4), (1, 2, 2.5)])
def test_three_whole_numbers(wrong):
    with pytest.raises(DataError, match="three whole numbers"):
        Roi((0, 0, 0), wrong)
    with pytest.raises(DataError, match="negative"):
        Roi((0, 0, 0), (1, -1, 1))


@settings(max_examples=60, deadline=None)
@given(rois, shapes, triples.map(lambda t: tuple(map(abs, t))), triples.map(lambda t: tuple(map(abs, t))))
def test_blocks_write_every_voxel_once_and_read_around_it(roi, step, low, high):
    made = blocks(roi, step, low, high)
    count = np.zeros(roi.shape, int)
    for block in made:
        count[block.write.shift([-b for b in roi.begin]).slices] += 1
        assert block.read == block.write.grow(low, high)
        assert block.write.size > 0 and all(w <= s for w, s in zip(block.write.shape, step))
    assert (count == 1).all()
    assert [b.write.begin for b in made] == sorted(b.write.begin for b in made)


def test_the_last_block_shrinks():
    writes = [b.write for b in blocks(Roi((0, 5, 0), (1, 7, 1)), (1, 3, 1))]
    assert [(w.begin[1], w.shape[1]) for w in writes] == [(5, 3), (8, 3), (11, 1)]
    with pytest.raises(DataError, match="at least 1 voxel"):
        blocks(Roi((0, 0, 0), (1, 1, 1)), (0, 1, 1))

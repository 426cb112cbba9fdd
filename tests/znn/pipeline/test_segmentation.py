"""Segments of boundary maps drawn by hand."""
import numpy as np
import pytest

from znn.pipeline.errors import WrongSetting
from znn.pipeline.segmentation import Segmentation, face_heights, join_small, numbered_through, segment

MAP = np.array([[[0.1, 0.1, 0.9, 0.1, 0.6, 0.2, 0.2]],
                [[0.1, 0.1, 0.9, 0.1, 0.1, 0.1, 0.1]]])


def test_components_of_sections_get_ids_of_their_own_and_leave_boundaries():
    found = segment(MAP, 0.5, Segmentation("components"))
    assert found.tolist() == [[[1, 1, 0, 2, 0, 3, 3]], [[4, 4, 0, 5, 5, 5, 5]]]


def test_watershed_of_sections_floods_from_seeds_that_are_large_enough():
    every = segment(MAP, 0.5, Segmentation("watershed", smallest_seed=1))
    assert (every > 0).all() and set(every[0].ravel()) == {1, 2, 3} and set(every[1].ravel()) == {4, 5}
    large = segment(MAP, 0.5, Segmentation("watershed", smallest_seed=2))
    # The seed of one voxel is gone; the 0.6 beside it is lower than the 0.9, so it is reached from the right.
    assert large[0, 0, 3:].tolist() == [2, 2, 2, 2] and large[0, 0, :2].tolist() == [1, 1]


def test_watershed_of_the_volume_joins_what_one_section_separates():
    found = segment(MAP, 0.5, Segmentation("watershed_3d", smallest_seed=1, smallest=0))
    assert found[0, 0, 0] == found[1, 0, 0] and found[0, 0, 3] == found[0, 0, 5] == found[1, 0, 6]
    assert set(found.ravel()) == {1, 2}


def test_a_face_is_as_high_as_the_mean_of_its_pairs():
    segments = np.array([[[1, 1, 2], [1, 3, 2]]])
    heights = np.array([[[0.0, 0.2, 0.4], [0.6, 0.8, 0.1]]])
    pairs, found = face_heights(segments, heights)
    # 1|2: (.2,.4). 1|3: (.6,.8) and (.2,.8). 2|3: (.8,.1).
    assert pairs.tolist() == [[1, 2], [1, 3], [2, 3]] and found == pytest.approx([0.4, 0.8, 0.8])


def test_small_segments_join_over_the_weakest_face_until_they_are_large_enough():
    segments = np.array([[[1, 1, 1, 2, 3, 3, 3, 0, 4]]])
    probability = np.array([[[0, 0, 0.3, 0.1, 0.2, 0, 0, 1, 0]]])
    assert join_small(segments, probability, 2, 0.5).tolist() == [[[1, 1, 1, 2, 2, 2, 2, 0, 3]]]
    assert join_small(segments, probability, 1, 0.5).tolist() == segments.tolist()
    assert join_small(segments, probability, 9, 0.5).tolist() == [[[1, 1, 1, 1, 1, 1, 1, 0, 2]]]
    assert join_small(segments, probability, 9, 0.2).tolist() == segments.tolist()


def test_nothing_but_boundary_is_no_segment():
    for method in ("components", "watershed", "watershed_3d"):
        assert not segment(np.ones((2, 3, 4)), 0.5, Segmentation(method)).any()


def test_ids_run_through_sections():
    assert numbered_through(np.array([[[7, 0, 9]], [[0, 0, 0]], [[4, 4, 4]]])).tolist() == [
        [[1, 0, 2]], [[0, 0, 0]], [[3, 3, 3]]]


@pytest.mark.parametrize("bad", [{"method": "flood"}, {"ids": "int8"}, {"threshold": 0.0}, {"join_below": 2.0},
                                 {"smallest": -1}, {"smallest_seed": -1}])
def test_settings_without_meaning_are_refused(bad):
    with pytest.raises(WrongSetting, match=r"segment\.\w+: expected"):
        Segmentation(**bad)

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from data import IGNORE, boundary_target
from data.errors import Mismatch, WrongSetting, WrongType

LABELS = hnp.arrays(np.uint64, hnp.array_shapes(min_dims=3, max_dims=3, max_side=6),
                    elements=st.sampled_from([0, 1, 2, 7, 2 ** 64 - 1]))


def test_touching_ids_by_hand():
    ids = np.array([[[1, 1, 2, 2],
                     [1, 1, 2, 2],
                     [0, 3, 3, 3]],
                    [[9, 9, 9, 9]] * 3])
    expected = np.array([[[0, 1, 1, 0],
                          [0, 1, 1, 1],
                          [1, 1, 1, 1]],
                         [[0, 0, 0, 0]] * 3])
    np.testing.assert_array_equal(boundary_target(ids, "ids"), expected)


def test_diagonal_neighbours_and_other_sections_do_not_touch():
    diagonal = np.array([[[1, 0], [0, 2]]])
    np.testing.assert_array_equal(boundary_target(diagonal, "ids"), [[[0, 1], [1, 0]]])
    above = np.array([[[1]], [[2]]])
    np.testing.assert_array_equal(boundary_target(above, "ids"), [[[0]], [[0]]])


@pytest.mark.parametrize("dtype, value", [(np.uint64, 2 ** 64 - 1), (np.uint32, 2 ** 32 - 1), (np.int64, -1),
                                          (np.int8, -1)])
@pytest.mark.parametrize("kind", ["ids", "membrane"])
def test_no_label_is_ignored_and_makes_no_boundary(dtype, value, kind):
    labels = np.array([[[1, value, 2]]], dtype)
    inside = 0 if kind == "ids" else 1
    np.testing.assert_array_equal(boundary_target(labels, kind), [[[inside, IGNORE, inside]]])


def test_255_of_a_byte_is_a_label():
    np.testing.assert_array_equal(boundary_target(np.array([[[0, 255]]], np.uint8), "membrane"), [[[0, 1]]])
    np.testing.assert_array_equal(boundary_target(np.array([[[255, 255]]], np.uint8), "ids"), [[[0, 0]]])


def test_mask():
    labels, mask = np.array([[[0, 0, 5, 5]]]), np.array([[[1, 0, 0, 2]]])
    np.testing.assert_array_equal(boundary_target(labels, "ids", mask), [[[IGNORE, 1, 0, IGNORE]]])
    np.testing.assert_array_equal(boundary_target(labels > 0, "membrane", mask), [[[IGNORE, 0, 1, IGNORE]]])


@settings(max_examples=60, deadline=None)
@given(LABELS, st.sampled_from(["ids", "membrane"]))
def test_ignored_exactly_where_there_is_no_label(labels, kind):
    target = boundary_target(labels, kind)
    np.testing.assert_array_equal(target == IGNORE, labels == 2 ** 64 - 1)
    assert set(np.unique(target)) <= {0, 1, IGNORE}


@settings(max_examples=60, deadline=None)
@given(LABELS, st.permutations([1, 2, 7]))
def test_names_of_ids_do_not_matter(labels, names):
    renamed = labels.copy()
    for old, new in zip([1, 2, 7], names):
        renamed[labels == old] = new
    np.testing.assert_array_equal(boundary_target(labels, "ids"), boundary_target(renamed, "ids"))


@settings(max_examples=40, deadline=None)
@given(LABELS, st.sampled_from(["z", "y", "x", "xy"]))
def test_turning_labels_turns_the_target(labels, how):
    turn = {"z": lambda a: a[::-1], "y": lambda a: a[:, ::-1], "x": lambda a: a[:, :, ::-1],
            "xy": lambda a: a.swapaxes(1, 2)}[how]
    np.testing.assert_array_equal(boundary_target(turn(labels), "ids"), turn(boundary_target(labels, "ids")))


def test_what_labels_cannot_be():
    with pytest.raises(WrongSetting, match="expected one of membrane, ids, found 'affinity'"):
        boundary_target(np.zeros((1, 1, 1), int), "affinity")
    with pytest.raises(WrongType, match="expected integers, found float32"):
        boundary_target(np.zeros((1, 1, 1), np.float32), "ids")
    with pytest.raises(Mismatch, match="mask"):
        boundary_target(np.zeros((1, 1, 2), int), "ids", np.zeros((1, 1, 1), int))

"""Merges and splits of sections, and where they are said to be."""
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from znn.pipeline import metrics, mistakes
from znn.pipeline.partition import section_components


def cells(hole=None, wall=None):
    """(found, truth) of a section of two cells with a boundary of 3 pixels between; a hole in what was found of it, and
    a wall found across the first cell, both as slices of the section."""
    truth = np.zeros((60, 90), bool)
    truth[:, 50:53] = True
    found = truth.copy()
    for region, value in ((hole, False), (wall, True)):
        if region is not None:
            found[region] = value
    return tuple(section_components(~boundary[None]) for boundary in (found, truth))


def test_a_perfect_partition_has_no_mistakes():
    found, truth = cells()
    assert mistakes.mistakes(truth, found) == []


def test_a_merge_is_where_the_boundary_is_missed():
    found, truth = cells(hole=np.s_[40:44, 50:53])
    merge, = mistakes.mistakes(truth, found)
    assert (merge.kind, merge.z, merge.parts) == ("merge", 0, 2) and 40 <= merge.y < 44 and 50 <= merge.x < 53
    a, b = 60 * 50, 60 * 37
    assert merge.cost == pytest.approx(2 * a * b / (a + b) ** 2)


def test_a_split_is_where_a_boundary_is_found_that_is_none():
    found, truth = cells(wall=np.s_[20:22, :50])
    split, = mistakes.mistakes(truth, found)
    assert (split.kind, split.parts) == ("split", 2) and 20 <= split.y < 22 and split.x < 50
    assert split.cost == pytest.approx(2 * (20 * 50) * (38 * 50) / (60 * 87) ** 2)


def test_the_costliest_come_first_and_a_boundary_aside_is_none():
    first, second = (cells(hole=np.s_[40:44, 50:53], wall=np.s_[h:h + 2, :50]) for h in (2, 28))
    found, truth = (np.concatenate(pair) for pair in zip(first, second))
    listed = mistakes.mistakes(truth, found)
    assert [(m.kind, m.z) for m in listed] == [("merge", 0), ("merge", 1), ("split", 1), ("split", 0)]
    assert [m.kind for m in mistakes.mistakes(truth, found, most=1)] == ["merge", "split"]
    aside = np.zeros((1, 60, 90), bool)
    aside[0, :24, 51:54], aside[0, 24:, 50:53] = True, True
    assert mistakes.mistakes(truth[:1], section_components(~aside)) == []


@given(arrays(np.int64, (2, 1, 6, 7), elements=st.integers(1, 4)))
def test_costs_are_what_the_rand_scores_lack(pair):
    truth, found = pair
    table = metrics.agreement(truth[0], found[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mistakes, "SMALLEST", 1)
        listed = mistakes.mistakes(truth, found)
    for kind, sizes in (("merge", table.predicted), ("split", table.truth)):
        lacking = (sizes @ sizes - table.joint @ table.joint) / truth.size ** 2
        assert sum(m.cost for m in listed if m.kind == kind) == pytest.approx(lacking)

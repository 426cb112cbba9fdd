"""Scores of held-out sections on maps drawn by hand."""
import numpy as np
import pytest

from znn.pipeline.selection import better, chosen_threshold, selection_scores


def cells(shape=(2, 9, 13), gap=None):
    """A wall through the middle column; with `gap`, of that probability at one place."""
    target = np.zeros(shape, np.uint8)
    target[:, :, 6] = 1
    probability = np.where(target == 1, 0.9, 0.1).astype(np.float32)
    if gap is not None:
        probability[0, 4, 6] = gap
    return probability, target


def test_a_map_like_the_target_scores_one_and_a_gap_costs_until_the_threshold_closes_it():
    scores = selection_scores([cells()], "v_rand")
    assert scores["v_rand"] == scores["v_info"] == 1 and scores["pixel_error"] == 0
    assert selection_scores([cells(gap=0.35)], "v_info")["v_rand"] == 1
    assert 0.1 < chosen_threshold([cells(gap=0.35)]) <= 0.35
    merged = selection_scores([cells(gap=0.1)], "v_rand")
    # Section 0 is one segment of 9 x 13 over two of 9 x 6: V_split 1, V_merge 1/2; section 1 is as it should be.
    assert merged["v_rand"] == pytest.approx((2 / 3 + 1) / 2)


def test_scores_that_take_long_are_made_only_when_asked_for():
    assert set(selection_scores([cells()], "loss")) == {"loss", "pixel_error"}


def test_stacks_of_different_extent_count_by_their_sections():
    scores = selection_scores([cells(), cells((1, 9, 15), gap=0.1)], "v_rand")
    assert 2 / 3 < scores["v_rand"] < 1


def test_what_is_not_labelled_has_no_score_and_no_threshold():
    probability, target = cells()
    nothing = [(probability, np.full_like(target, 255))]
    assert selection_scores(nothing, "v_rand") == {"loss": None, "pixel_error": None, "v_rand": None, "v_info": None}
    assert chosen_threshold(nothing) is None


@pytest.mark.parametrize("name, value, best, expected", [
    ("v_rand", 0.9, 0.8, True), ("v_rand", 0.8, 0.9, False), ("v_rand", 0.9, 0.9, False),
    ("pixel_error", 0.1, 0.2, True), ("pixel_error", 0.2, 0.1, False), ("loss", None, 0.1, False),
    ("loss", 0.3, None, True)])
def test_better_depends_on_the_score(name, value, best, expected):
    assert better(name, value, best) is expected

"""Costs and class weights against numbers worked out by hand and against torch."""
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from znn.pipeline.errors import WrongSetting
from znn.pipeline.loss import Balance, BoundaryLoss, class_weights, map_scores


def test_published_scalings_of_the_weights():
    # 30 interior, 10 boundary: 1/n+ : 1/n- = 3 : 1.
    assert class_weights((30, 10), "sum_one") == pytest.approx((0.25, 0.75))
    assert class_weights((30, 10), "mean_one") == pytest.approx((40 / 60, 40 / 20))
    assert class_weights((30, 10), "none") == (1, 1)
    interior, boundary = class_weights((30, 10), "mean_one")
    assert (30 * interior + 10 * boundary) / 40 == pytest.approx(1)
    for scaling in ("sum_one", "mean_one"):
        assert class_weights((30, 0), scaling) == class_weights((0, 10), scaling) == (1, 1)


def test_cost_is_torchs_mean_over_labelled_voxels_and_only_the_objective_is_weighted():
    torch.manual_seed(0)
    logits = torch.randn(2, 2, 1, 5, 7, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 2, (2, 1, 5, 7), dtype=torch.uint8)
    target[0, 0, :2] = 255
    outcome = BoundaryLoss(Balance("mean_one", "global"), (30, 10))(logits, target)
    assert outcome.cost == pytest.approx(F.cross_entropy(logits, target.long(), ignore_index=255).item())
    weight = torch.tensor([40 / 60, 2.0], dtype=torch.float64)
    expected = F.cross_entropy(logits, target.long(), weight, ignore_index=255, reduction="sum")
    assert outcome.objective.item() == pytest.approx(expected.item() / int((target != 255).sum()))
    outcome.objective.backward()
    assert not logits.grad[0, :, 0, :2].any() and logits.grad[0, :, 0, 2:].all()


def test_weights_of_each_patch_are_its_own():
    target = torch.zeros(2, 1, 2, 2, dtype=torch.uint8)
    target[0, 0, 0, 0] = 1                                        # 3 interior, 1 boundary; the other has no boundary
    logits = torch.zeros(2, 2, 1, 2, 2)
    outcome = BoundaryLoss(Balance("sum_one", "patch"), (1, 1))(logits, target)
    # ln 2 a voxel; weights 3 x 1/4 + 1 x 3/4, and 4 x 1
    assert outcome.objective.item() == pytest.approx(math.log(2) * (1.5 + 4) / 8)
    assert outcome.cost == pytest.approx(math.log(2))


def test_pixel_error_counts_labelled_voxels_only():
    target = torch.tensor([[[[0, 1, 1, 255]]]], dtype=torch.uint8)
    logits = torch.zeros(1, 2, 1, 1, 4)
    logits[0, 1] = torch.tensor([1.0, 1.0, -1.0, 1.0])            # wrong, right, wrong, ignored
    assert BoundaryLoss(Balance(), (1, 1))(logits, target).pixel_error == pytest.approx(2 / 3)


def test_scores_of_a_map_by_hand():
    target = np.array([0, 0, 1, 1, 255], np.uint8)
    p = np.array([0.2, 0.6, 0.7, 0.9, 0.0], np.float32)
    scores = map_scores(p, target)
    assert scores["pixel_error"] == 0                             # any threshold from 0.6 to 0.7 parts them
    assert scores["loss"] == pytest.approx(-np.log([0.8, 0.4, 0.7, 0.9]).mean(), rel=1e-6)
    assert map_scores(1 - p, target)["pixel_error"] == 0.5
    assert math.isfinite(map_scores(np.array([1.0], np.float32), np.array([0], np.uint8))["loss"])


def test_scores_agree_with_thresholding_voxel_by_voxel():
    rng = np.random.default_rng(0)
    p, target = rng.random(500, np.float32), rng.choice([0, 1, 255], 500).astype(np.uint8)
    known = target != 255
    errors = [np.mean((p[known] >= t) != (target[known] == 1)) for t in np.arange(1, 100) / 100]
    assert map_scores(p, target)["pixel_error"] == pytest.approx(min(errors))


def test_scores_without_a_labelled_voxel_are_undefined():
    assert map_scores(np.zeros(3, np.float32), np.full(3, 255, np.uint8)) == {"loss": None, "pixel_error": None}


def test_unknown_scalings_are_refused():
    with pytest.raises(WrongSetting, match="sum_one, mean_one"):
        Balance("sum")
    with pytest.raises(WrongSetting, match="global, patch"):
        Balance(over="stack")

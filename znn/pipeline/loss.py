"""Softmax cross-entropy averaged over the output voxels of a patch, the two classes rebalanced."""
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from data.targets import BOUNDARY, IGNORE, INTERIOR
from znn.pipeline.errors import one_of

SCALINGS = ("none", "sum_one", "mean_one")
SCOPES = ("global", "patch")


@dataclass
class Balance:
    """Weights of interior (-) and boundary (+) voxels in the gradient; n-, n+ are their counts, N the sum.

    scaling : "none", "sum_one" or "mean_one"
        "sum_one": w+ = n- / N and w- = n+ / N, which add up to 1 (published first); "mean_one": w+ = N / (2 n+) and
        w- = N / (2 n-), with which the mean weight of a voxel is 1 (published later). The ratio is the same.
    over : "global" or "patch"
        Counts of all training labels, or of each patch.
    """

    scaling: str = "mean_one"
    over: str = "global"

    def __post_init__(self):
        one_of("balance scaling", self.scaling, SCALINGS)
        one_of("balance over", self.over, SCOPES)


def class_weights(counts, scaling):
    """Weights of the two classes.

    Parameters
    ----------
    counts : (int, int)
        Interior and boundary voxels. When one class is missing both weights are 1.
    scaling : str
        See `Balance`.

    Returns
    -------
    (float, float)
        Of interior and boundary.
    """
    interior, boundary = (float(n) for n in counts)
    if scaling == "none" or not interior or not boundary:
        return 1.0, 1.0
    total = interior + boundary
    if scaling == "sum_one":
        return boundary / total, interior / total
    return total / (2 * interior), total / (2 * boundary)


@dataclass(frozen=True)
class Outcome:
    """What a network made of patches.

    Attributes
    ----------
    objective : Tensor, scalar
        Weighted; its gradient trains.
    cost : float
        Cross-entropy in nats, unweighted mean over labelled voxels.
    pixel_error : float
        Share of labelled voxels whose more probable class is the wrong one.
    """

    objective: torch.Tensor
    cost: float
    pixel_error: float


class BoundaryLoss:
    """Class-rebalanced softmax cross-entropy.

    Parameters
    ----------
    balance : Balance
    counts : (int, int)
        Interior and boundary voxels of all training labels, for the global weights.
    """

    def __init__(self, balance, counts):
        self.balance = balance
        self.weights = None if balance.over == "patch" else class_weights(counts, balance.scaling)

    def __call__(self, logits, target):
        """`Outcome` of logits (N, 2, Z, Y, X) against target (N, Z, Y, X) uint8 with at least one labelled voxel."""
        labelled = target != IGNORE
        n = int(labelled.sum())
        cost = F.cross_entropy(logits, target.long(), ignore_index=IGNORE, reduction="none")
        objective = (cost * self._voxel_weights(target).to(cost.dtype)).sum() / n
        with torch.no_grad():
            wrong = ((logits[:, 1] > logits[:, 0]) != (target == BOUNDARY)) & labelled
            return Outcome(objective, float(cost.sum()) / n, int(wrong.sum()) / n)

    def _voxel_weights(self, target):
        if self.weights is not None:
            return _paint(target, self.weights)
        counts = [(int((t == INTERIOR).sum()), int((t == BOUNDARY).sum())) for t in target]
        return torch.stack([_paint(t, class_weights(c, self.balance.scaling)) for t, c in zip(target, counts)])


def _paint(target, weights):
    return torch.where(target == BOUNDARY, weights[1], weights[0])


def map_scores(probability, target):
    """Scores of a boundary map on held-out voxels.

    Parameters
    ----------
    probability : ndarray, float32
        Of boundary.
    target : ndarray of the same shape, uint8

    Returns
    -------
    dict
        ``loss``, the mean cross-entropy in nats, and ``pixel_error``, the smallest over thresholds 0.01 ... 0.99;
        both None where no voxel is labelled, since they are undefined there.
    """
    labelled = target != IGNORE
    if not labelled.any():
        return {"loss": None, "pixel_error": None}
    p, boundary = probability[labelled].astype(np.float64), target[labelled] == BOUNDARY
    tiny = np.finfo(np.float32).tiny
    loss = -np.log(np.maximum(np.where(boundary, p, 1 - p), tiny)).mean()
    # Voxels of each class at or below each threshold, from two histograms.
    edges = np.concatenate([[-np.inf], np.arange(1, 100) / 100, [np.inf]])
    missed = np.cumsum(np.histogram(p[boundary], edges)[0])[:-1]
    found = np.cumsum(np.histogram(p[~boundary], edges)[0])[:-1]
    errors = (missed + (~boundary).sum() - found) / boundary.size
    return {"loss": float(loss), "pixel_error": float(errors.min())}

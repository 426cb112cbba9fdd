"""How well one partition of voxels agrees with another: Rand and information scores, each by its named convention.

Every score of partitions is a function of a table of counts, `Agreement`: how many voxels lie in true segment i and in
predicted segment j.  Voxels whose true label is 0 belong to no neuron and are left out ("foreground-restricted").
Conventions differ on two points only, and each function says what it does with them:

* *loose* voxels, which carry a true label but the prediction's 0 (drawn as boundary);
* pairs of a voxel with itself, which some count and others do not.

A score that the data does not determine (no labelled voxel, a single true segment) is ``None``, never nan.

References
----------
Arganda-Carreras et al. (2015), Crowdsourcing the creation of image segmentation algorithms for connectomics,
Front. Neuroanat. 9:142.  Meila (2007), Comparing clusterings, J. Multivariate Analysis 98:873.
"""
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from skimage.metrics import contingency_table

from data.targets import unlabelled

CONVENTIONS = {
    "cremi": "truth 0 excluded, predicted 0 in no segment, self pairs counted",
    "skimage": "truth 0 excluded, predicted 0 one segment more, no self pairs",
}


def dense_ids(ids):
    """Number the distinct ids 0, 1, 2, ... so that tables of counts stay small.

    Parameters
    ----------
    ids : ndarray of int
        Any ids up to 2**64 - 1.  What `data.targets.unlabelled` names (negative ids, CREMI's 2**64 - 1) counts as 0.

    Returns
    -------
    ndarray of int64
        Same shape; 0 where `ids` is 0 or "no label", else 1 .. number of distinct ids.
    """
    ids = np.asarray(ids)
    values, dense = np.unique(np.where(unlabelled(ids), ids.dtype.type(0), ids), return_inverse=True)
    return dense.reshape(ids.shape).astype(np.int64) + (0 if values.size and values[0] == 0 else 1)


@dataclass(frozen=True)
class Agreement:
    """Sizes, in voxels that carry a true label, of segments and of their intersections (float64, exact to 2**53).

    Attributes
    ----------
    joint : ndarray
        Intersections of a true with a predicted segment, empty ones left out.
    truth : ndarray
        True segments, loose voxels included.
    predicted : ndarray
        Predicted segments, where there is truth.
    loose : ndarray
        For each true segment that has any, its voxels that lie in no predicted segment.
    voxels : int
        All voxels looked at, those without a true label included; only the "cremi" convention asks for it.
    """

    joint: np.ndarray
    truth: np.ndarray
    predicted: np.ndarray
    loose: np.ndarray
    voxels: int


def agreement(truth, predicted):
    """Count how often each true segment meets each predicted one.

    Parameters
    ----------
    truth, predicted : ndarray of int
        Segment numbers of the same shape, small and not negative (see `dense_ids`); 0 is no segment.

    Returns
    -------
    Agreement

    Raises
    ------
    ValueError
        If the shapes differ or hold no voxel.
    """
    if truth.shape != predicted.shape or truth.size == 0:
        raise ValueError(f"truth {truth.shape} and prediction {predicted.shape} must have one shape and not be empty")
    table = sparse.csc_array(contingency_table(truth, predicted, ignore_labels=[0]))
    sizes = table.sum(axis=1), table.sum(axis=0)[1:], table[:, [0]].data, table[:, 1:].data
    true_sizes, predicted_sizes, loose, joint = (counts[counts > 0] for counts in sizes)
    return Agreement(joint, true_sizes, predicted_sizes, loose, truth.size)


def pool(agreements):
    """Put tables end to end whose segments have nothing in common, such as the sections of a stack scored in 2D."""
    names = "joint", "truth", "predicted", "loose"
    joined = (np.concatenate([getattr(a, name) for a in agreements]) for name in names)
    return Agreement(*joined, sum(a.voxels for a in agreements))


def rand_split_merge(counts):
    """Foreground-restricted Rand scores of Arganda-Carreras et al. (2015), each loose voxel a segment of its own.

    With p_ij the fraction of labelled voxels in true segment i and predicted segment j, t_i and s_j its sums, and
    every loose voxel contributing (1/n)**2 to the sums over p and s::

        V_split = sum p_ij^2 / sum t_i^2        V_merge = sum p_ij^2 / sum s_j^2

    V_split falls when a neuron is broken up, V_merge when two are joined.

    Parameters
    ----------
    counts : Agreement

    Returns
    -------
    tuple of float, or None
        (V_split, V_merge); None without a labelled voxel.

    Examples
    --------
    >>> truth = np.array([[1, 1, 2, 2]])
    >>> rand_split_merge(agreement(truth, np.array([[1, 1, 1, 1]])))
    (1.0, 0.5)
    >>> rand_split_merge(agreement(truth, np.array([[1, 2, 3, 3]])))
    (0.75, 1.0)
    """
    truth = _squares(counts.truth)
    if truth == 0:
        return None
    alone = counts.loose.sum()
    joint = _squares(counts.joint) + alone
    return float(joint / truth), float(joint / (_squares(counts.predicted) + alone))


def v_rand(counts):
    """V_rand of ISBI 2012: ``2 sum p_ij^2 / (sum s_j^2 + sum t_i^2)``, the harmonic mean of `rand_split_merge`.

    Returns
    -------
    float or None
        1 for equal partitions; None without a labelled voxel.
    """
    scores = rand_split_merge(counts)
    return None if scores is None else 2 * scores[0] * scores[1] / sum(scores)


def v_info(counts):
    """V_info of ISBI 2012: ``2 I(S; T) / (H(S) + H(T))``, each loose voxel a segment of its own.

    Parameters
    ----------
    counts : Agreement

    Returns
    -------
    float or None
        1 for equal partitions; None when the truth has fewer than two segments, because its entropy is then 0 and
        the score would be 0 or 0/0 whatever the prediction.
    """
    if counts.truth.size < 2:
        return None
    n = counts.truth.sum()
    alone = counts.loose.sum() / n * np.log2(n)
    truth = _entropy(counts.truth, n)
    predicted = _entropy(counts.predicted, n) + alone
    joint = _entropy(counts.joint, n) + alone
    return float(2 * (truth + predicted - joint) / (truth + predicted))


def adapted_rand(counts, convention="cremi"):
    """Adapted Rand error of SNEMI3D, ``1 - 2PR / (P + R)``, with the precision and recall of voxel pairs.

    Parameters
    ----------
    counts : Agreement
    convention : str
        "cremi": sums of squared counts as in the challenges' script.  Loose voxels are in the true sizes only; the
        script adds their number, *divided by the number of all voxels*, to the joint and predicted sums (a slip of
        scale which is kept here, because published scores have it; it is far below 1e-6 on real volumes).
        "skimage": `skimage.metrics.adapted_rand_error`, where loose voxels form one segment and a voxel is not
        paired with itself.

    Returns
    -------
    tuple of float, or None
        (error, precision, recall).  Precision falls with merges, recall with splits.  None when there is no pair
        to judge.

    Raises
    ------
    ValueError
        If the convention is unknown.
    """
    if convention not in CONVENTIONS:
        raise ValueError(f"convention {convention!r} is unknown: choose one of {', '.join(CONVENTIONS)}")
    if convention == "skimage":
        joint, truth, predicted = (
            _squares(sizes) - sizes.sum()
            for sizes in (np.append(counts.joint, counts.loose), counts.truth, _with_background(counts))
        )
    else:
        slip = counts.loose.sum() / max(counts.voxels, 1)
        joint, predicted = _squares(counts.joint) + slip, _squares(counts.predicted) + slip
        truth = _squares(counts.truth)
    if truth == 0 or predicted == 0:
        return None
    return float(1 - 2 * joint / (truth + predicted)), float(joint / predicted), float(joint / truth)


def variation_of_information(counts):
    """Variation of information in bits, as CREMI reports it; predicted 0 is a segment like any other.

    ``split = H(S | T)`` grows when a neuron is broken up, ``merge = H(T | S)`` when two are joined.

    Parameters
    ----------
    counts : Agreement

    Returns
    -------
    tuple of float, or None
        (split, merge) in bits; None without a labelled voxel.
    """
    n = counts.truth.sum()
    if n == 0:
        return None
    joint = _entropy(np.append(counts.joint, counts.loose), n)
    split, merge = joint - _entropy(counts.truth, n), joint - _entropy(_with_background(counts), n)
    return max(split, 0.0), max(merge, 0.0)  # rounding may leave -1e-16


def cremi_score(voi, adapted_rand_error):
    """CREMI's ranking score: the geometric mean ``sqrt((split + merge) * ARAND)``; lower is better."""
    return float(np.sqrt(sum(voi) * adapted_rand_error))


def pixel_error(predicted, truth, scored):
    """Fraction of the scored voxels that are called boundary wrongly, or missed.

    Parameters
    ----------
    predicted, truth : ndarray of bool
        True on boundary; equal shapes.
    scored : ndarray of bool
        True where the truth is known.

    Returns
    -------
    float or None
        None when nothing is scored.
    """
    n = np.count_nonzero(scored)
    return None if n == 0 else float(np.count_nonzero((predicted != truth) & scored) / n)


def _squares(sizes):
    return float(sizes @ sizes)


def _with_background(counts):
    """Predicted sizes, the loose voxels counted as one segment more."""
    return np.append(counts.predicted, counts.loose.sum())


def _entropy(sizes, n):
    """Entropy in bits of the distribution sizes / n."""
    p = sizes[sizes > 0] / n
    return float(-(p @ np.log2(p)))

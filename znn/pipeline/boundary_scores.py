"""The field's scores of a boundary map, or of a segmentation, against a truth.

===================  ==========  ==================================================================================
score                better      what is compared
===================  ==========  ==================================================================================
v_rand, v_info       high        ISBI 2012: 4-connected components of a section, thinned; mean over sections
rand_f_components    high        2D Rand F-score of those components as they are, all sections pooled
rand_f_watershed     high        the same after flooding the map from the components, seeds of several smallest sizes
pixel_error          low         boundary pixels called wrongly or missed
adapted_rand_error   low         SNEMI3D: 6-connected components of the volume, flooded, against 3D ids
voi_split/_merge     low         CREMI: the same segments, in bits, at the threshold of the least sum
cremi_score          low         CREMI: sqrt((split + merge) * adapted Rand error)
===================  ==========  ==================================================================================
"""
from dataclasses import dataclass, field

import numpy as np

from znn.pipeline import metrics, partition
from znn.pipeline.sweep import best_threshold, coarse_thresholds, sweep

BETTER = {
    "v_rand": max, "v_info": max, "rand_f_components": max, "rand_f_watershed": max, "pixel_error": min,
    "adapted_rand_error": min, "voi": min, "cremi_score": min,
}
SEED_SIZES_PX = (1, 25, 100)


@dataclass(frozen=True)
class Truth:
    """What is known about a stack.

    Attributes
    ----------
    sections : ndarray of int, shape (Z, Y, X)
        True segments numbered within each section; 0 on membrane and where nothing is known.
    boundary : ndarray of bool, shape (Z, Y, X)
    scored : ndarray of bool, shape (Z, Y, X)
        True where `boundary` is known.
    ids : ndarray of int, shape (Z, Y, X), optional
        Neurons numbered through the volume, small numbers; 0 where none is known.  Without them the scores of the
        volume are undefined.
    """

    sections: np.ndarray
    boundary: np.ndarray
    scored: np.ndarray
    ids: np.ndarray | None = None


@dataclass(frozen=True)
class Value:
    """A score at one threshold.

    Attributes
    ----------
    value : float or None
        None is undefined.
    sections : list of (float or None), optional
        The scores of which `value` is the mean.
    details : dict
        What else belongs to it: split and merge parts, seed size.
    """

    value: float | None
    sections: list | None = None
    details: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """The best of one score over the thresholds.

    Attributes
    ----------
    best : Value
    threshold : float or None
        None when the score is undefined or the prediction has no thresholds.
    curve : list of (float, float or None)
        (threshold, value), ascending.
    """

    best: Value
    threshold: float | None
    curve: list


def mean_over_sections(values):
    """Mean of the defined ones, undefined when there are none."""
    defined = [v for v in values if v is not None]
    return Value(float(np.mean(defined)) if defined else None, list(values))


def score_thinned(true_sections, sections):
    """V_rand and V_info of ISBI 2012 of a section partition against another, each a sequence of (Y, X) sections."""
    counts = [
        metrics.agreement(t, partition.thin_boundaries(s)) for t, s in zip(true_sections, sections, strict=True)
    ]
    return {
        "v_rand": mean_over_sections([metrics.v_rand(c) for c in counts]),
        "v_info": mean_over_sections([metrics.v_info(c) for c in counts]),
    }


def score_pooled(truth, sections, name):
    """2D Rand F-score, 1 - adapted Rand error by the "cremi" convention, over all sections at once."""
    counts = metrics.pool([metrics.agreement(t, s) for t, s in zip(truth.sections, sections, strict=True)])
    scores = metrics.adapted_rand(counts, "cremi")
    if scores is None:
        return {name: Value(None)}
    error, merge, split = scores
    return {name: Value(1 - error, details={"precision": merge, "recall": split})}


def score_flooded(truth, probability, components, seed_sizes_px):
    """2D Rand F-score after flooding each section from its components, the best over the smallest seed allowed."""
    tried = {}
    for size in seed_sizes_px:
        seeds = (partition.drop_small(section, size) for section in components)
        sections = [partition.grow(s, p) for s, p in zip(seeds, probability, strict=True)]
        tried[size] = score_pooled(truth, sections, "rand_f_watershed")["rand_f_watershed"]
    size = best_threshold({k: {"f": value} for k, value in tried.items()}, "f", max)
    if size is None:
        return {"rand_f_watershed": Value(None)}
    return {"rand_f_watershed": Value(tried[size].value, details={**tried[size].details, "smallest_seed_px": size})}


def score_pixels(truth, boundary):
    """Pixel error of a boundary mask."""
    return {"pixel_error": Value(metrics.pixel_error(boundary, truth.boundary, truth.scored))}


def score_volume(truth, segments, convention):
    """Adapted Rand error, variation of information and CREMI score of a segmentation of the volume."""
    names = "adapted_rand_error", "voi", "cremi_score"
    if truth.ids is None:
        return {name: Value(None) for name in names}
    counts = metrics.agreement(truth.ids, segments)
    rand, voi = metrics.adapted_rand(counts, convention), metrics.variation_of_information(counts)
    values = (
        Value(None) if rand is None else Value(rand[0], details={"precision": rand[1], "recall": rand[2]}),
        Value(None) if voi is None else Value(sum(voi), details={"split": voi[0], "merge": voi[1]}),
        Value(None) if None in (rand, voi) else Value(metrics.cremi_score(voi, rand[0])),
    )
    return dict(zip(names, values, strict=True))


def map_families(truth, probability, convention, seed_sizes_px):
    """Scores of a boundary map that share their work, as functions of the threshold.

    A voxel is boundary where its probability is at or above the threshold.

    Returns
    -------
    dict of tuple of str to callable
        Names of the scores to ``scorer(threshold) -> {name: Value}``.
    """

    def thinned(t):
        return score_thinned(truth.sections, partition.section_components(probability < t))

    def components(t):
        return score_pooled(truth, partition.section_components(probability < t), "rand_f_components")

    def watershed(t):
        return score_flooded(truth, probability, partition.section_components(probability < t), seed_sizes_px)

    def pixels(t):
        return score_pixels(truth, probability >= t)

    def volume(t):
        if truth.ids is None:
            return score_volume(truth, None, convention)
        seeds = partition.volume_components(probability < t)
        return score_volume(truth, partition.grow(seeds, probability), convention)

    return {
        ("v_rand", "v_info"): thinned,
        ("rand_f_components",): components,
        ("rand_f_watershed",): watershed,
        ("pixel_error",): pixels,
        ("adapted_rand_error", "voi", "cremi_score"): volume,
    }


def score_map(truth, probability, convention="cremi", coarse_step=0.05, fine_step=0.01, seed_sizes_px=SEED_SIZES_PX,
              progress=None):
    """Every score of a boundary map, each at its best threshold.

    Parameters
    ----------
    truth : Truth
    probability : ndarray of float, shape (Z, Y, X)
        1 is boundary.
    convention : str
        Of the adapted Rand error in the volume, see `metrics.adapted_rand`.
    coarse_step, fine_step : float
        See `sweep.sweep`.
    seed_sizes_px : sequence of int
        Smallest seeds tried for `rand_f_watershed`.
    progress : callable, optional
        Called with no argument after every threshold of every family of scores.

    Returns
    -------
    dict of str to Score
        By the names in `BETTER`.
    """
    found = {}
    for names, scorer in map_families(truth, probability, convention, seed_sizes_px).items():
        scores = sweep(scorer, {name: BETTER[name] for name in names}, coarse_step, fine_step, progress)
        found |= {name: _best(scores, name) for name in names}
    return found


def expected_thresholds(coarse_step, fine_step):
    """How often `score_map` will call `progress`, but for scores of one family whose best lie far apart."""
    families, refined = 5, 2 * round(coarse_step / fine_step) - 2
    return families * (len(coarse_thresholds(coarse_step, fine_step)) + refined)


def score_at(truth, probability, threshold, convention="cremi", seed_sizes_px=SEED_SIZES_PX):
    """Every score of a boundary map at one threshold; see `score_map`."""
    families = map_families(truth, probability, convention, seed_sizes_px)
    return {name: _best({threshold: scorer(threshold)}, name) for names, scorer in families.items() for name in names}


def score_mask(truth, boundary, convention="cremi", seed_sizes_px=SEED_SIZES_PX):
    """Every score of a binary boundary mask, (Z, Y, X) bool: a map with the one threshold 0.5."""
    return score_at(truth, boundary.astype(np.float32), 0.5, convention, seed_sizes_px)


def score_segmentation(truth, ids, boundary, convention="cremi"):
    """Every score of a segmentation.

    Parameters
    ----------
    truth : Truth
    ids : ndarray of int, shape (Z, Y, X)
        Small numbers, 0 is boundary; scored as they are in the volume, by their components in the sections.
    boundary : ndarray of bool, shape (Z, Y, X)
        The boundaries that follow from them, for the pixel error.
    convention : str
        See `metrics.adapted_rand`.

    Returns
    -------
    dict of str to Score
        Without thresholds.
    """
    sections = partition.section_components(ids)
    flat = np.zeros(ids.shape[1:], np.uint8)
    grown = np.stack([partition.grow(section, flat) for section in sections])
    found = {
        **score_thinned(truth.sections, sections),
        **score_pooled(truth, sections, "rand_f_components"),
        **score_pooled(truth, grown, "rand_f_watershed"),
        **score_pixels(truth, boundary),
        **score_volume(truth, ids, convention),
    }
    return {name: Score(value, None, []) for name, value in found.items()}


def _best(scores, name):
    """The `Score` of one name out of {threshold: {name: Value}}."""
    threshold = best_threshold(scores, name, BETTER[name])
    shown = next(iter(scores)) if threshold is None else threshold
    return Score(scores[shown][name], threshold, [(t, s[name].value) for t, s in scores.items()])

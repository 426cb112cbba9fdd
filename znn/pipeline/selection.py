"""Scores of held-out sections, by which the best weights and the threshold are chosen."""
import numpy as np

from data.targets import INTERIOR
from znn.pipeline.boundary_scores import BETTER, score_thinned
from znn.pipeline.loss import map_scores
from znn.pipeline.partition import section_components
from znn.pipeline.sweep import best_threshold, sweep

# The score that weights are chosen by, and which end of it is good.
SELECTIONS = {"pixel_error": min, "loss": min, "v_rand": max, "v_info": max}
PARTITIONS = ("v_rand", "v_info")
COARSE, FINE = 0.1, 0.05


def better(name, value, best):
    """Whether a score is better than the best so far; an undefined one (None) never is, any other is than none."""
    return value is not None and (best is None or (value != best and SELECTIONS[name](value, best) == value))


def selection_scores(maps, select_by):
    """Scores of boundary maps against their targets, over all of them.

    Parameters
    ----------
    maps : list of (ndarray, ndarray)
        Probability of boundary, float32, and target, uint8, both (Z, Y, X); one pair a stack.
    select_by : str
        A key of `SELECTIONS`.

    Returns
    -------
    dict of str to (float or None)
        ``loss`` and ``pixel_error``; for a selection by either, also ``v_rand`` and ``v_info``, which take longer.
    """
    scores = map_scores(*(np.concatenate([part.ravel() for part in parts]) for parts in zip(*maps)))
    if select_by in PARTITIONS:
        found = _partition_scores(maps, COARSE, FINE)
        scores |= {name: max((s[name].value for s in found.values() if s[name].value is not None), default=None)
                   for name in PARTITIONS}
    return scores


def chosen_threshold(maps, score="v_rand"):
    """The threshold at which maps score best: a float, or None where the score is undefined; see `selection_scores`."""
    return best_threshold(_partition_scores(maps, 0.05, 0.01), score, BETTER[score])


def _partition_scores(maps, coarse_step, fine_step):
    """V_rand and V_info of ISBI 2012 by threshold; true segments are what the target's boundaries enclose."""
    truth = [section for _, target in maps for section in section_components(target == INTERIOR)]

    def at(threshold):
        return score_thinned(truth, [section for probability, _ in maps
                                     for section in section_components(probability < threshold)])

    return sweep(at, {name: BETTER[name] for name in PARTITIONS}, coarse_step, fine_step)

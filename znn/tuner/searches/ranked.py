"""Simulated annealing over a learned ranking, AutoTVM-style (Chen et al. 2018, arXiv 1805.08166; TVM's ``XGBTuner``).

A model learns to rank from what was measured; annealing on its scores, where steps cost no measurement, plans what to
measure next. Model, temperatures and the random share are as published; the filter for diversity is off, as it is
there unless asked for. Reduced is the work of planning: a step of ours is checked exactly, which costs about a
millisecond, and the published 128 chains of 500 steps would take a minute for every plan. There are `STEPS` steps for
each schedule of the plan, on half as many chains as it has schedules, so that planning takes a fifth of the time of
measuring; the early end after 50 idle iterations would hardly be reached and is left out. Chains begin at the best
that was measured, not where the last ones ended: our space has no bounds, and chains that wander off into longer
nests find nothing there. The published plan of 64 is not measured once in 2 seconds: there is a small one too.
"""
import heapq
import math
from functools import partial

import numpy as np

from znn.tuner.moves import neighbour
from znn.tuner.searches.features import KINDS
from znn.tuner.searches.strategies import random_walk

MODEL = {"max_depth": 3, "gamma": 1e-4, "min_child_weight": 1, "subsample": 1.0, "eta": 0.3, "lambda": 1.0, "alpha": 0,
         "objective": "rank:pairwise", "disable_default_eval_metric": True, "verbosity": 0,
         "nthread": 1}       # threads that wait for more would disturb measuring
BOOSTS, IDLE_BOOSTS = 8000, 20  # trees at most, and without gain of the recall
STEPS = 48                   # of annealing for each schedule of a plan
EXPLORED = 0.05              # share of a plan that is random


def annealing_xgboost(problem, rng, plan_size=64, kind="knob"):
    """Plans of `plan_size`, the first one random; `kind` is that of the features, of `features.KINDS`.

    Raises
    ------
    ModuleNotFoundError
        Without xgboost, of the extra ``tune``.
    """
    told, extract = {problem.start: (yield problem.start)}, KINDS[kind]
    rows = {}  # features by schedule

    def row(schedule):
        if schedule not in rows:
            rows[schedule] = extract(problem, schedule)
        return rows[schedule]

    def scored(model, schedules):
        return model([row(s) for s in schedules])

    plan, known = [], 0
    while known < len(told):  # the last plan had something new
        known = len(told)
        for number in range(plan_size):
            explore = number >= plan_size - max(1, int(EXPLORED * plan_size))
            schedule = random_walk(problem, rng) if explore or number >= len(plan) else plan[number]
            told[schedule] = yield schedule
        model = _model([row(s) for s in told], list(told.values()), plan_size, rng.getrandbits(31))
        plan = _annealed(problem, partial(scored, model), told, plan_size, rng)


def _model(rows, seconds, plan_size, seed):
    """A function from rows of features to scores, the higher the faster, learned from times."""
    import xgboost  # optional, and slow to import

    labels = min(seconds) / np.array(seconds)  # 0 for failures
    if not np.isfinite(labels).all():  # everything failed
        return lambda rows: np.zeros(len(rows))
    data = xgboost.DMatrix(np.array(rows), labels)
    data.set_group([len(rows)])
    model = xgboost.train(MODEL | {"seed": seed}, data, BOOSTS, evals=[(data, "told")], maximize=True,
                          custom_metric=lambda scores, _: ("recall", average_recall(scores, labels, plan_size)),
                          early_stopping_rounds=IDLE_BOOSTS, verbose_eval=False)
    return lambda rows: model.predict(xgboost.DMatrix(np.array(rows)), iteration_range=(0, model.best_iteration + 1))


def average_recall(scores, labels, most):
    """How much of the best n is among the n of the highest scores, mean over n = 1 to `most`."""
    by_score, by_label = (np.argsort(np.argsort(-np.asarray(v), kind="stable")) for v in (scores, labels))
    both = np.maximum(by_score, by_label)  # from this n on it is in both
    n = np.arange(1, min(most, len(both)) + 1)
    return float(np.mean([(both < k).sum() / k for k in n]))


def _annealed(problem, scores, told, plan_size, rng):
    """A plan of the best schedules that chains from the best of those told pass, none of them told; best first."""
    here = sorted(told, key=told.get)[:max(1, plan_size // 2)]
    energies, best = scores(here), {}
    iterations = STEPS * plan_size // len(here)
    for i in range(iterations):
        heat = 1 - i / iterations
        there = [neighbour(problem, s, rng) for s in here]
        found = scores(there)
        best.update((s, float(e)) for s, e in zip(there, found) if s not in told)
        for k, gain in enumerate(found - energies):
            if rng.random() < math.exp(min(gain / (heat + 1e-5), 1)):
                here[k], energies[k] = there[k], found[k]
    return heapq.nlargest(plan_size, best, key=best.get)

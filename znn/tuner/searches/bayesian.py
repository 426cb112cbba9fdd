"""Bayesian optimisation of a walk: Optuna's tree-structured Parzen estimator (Bergstra et al. 2011) chooses its moves.

A point is a walk from the start: how many moves, and for each of them the action and where in the nest, from 0, the
outermost loop, to 1.  A move that is illegal there is made at the next loop inside where it is legal, and left out
where there is none, so that all points are schedules of the space that the other searches have.
"""
import contextlib
import logging
import math
import warnings

from znn.loops import IllegalSchedule
from znn.tuner.moves import ACTIONS, State, act

MOVES = 6        # of a walk, at most
STALE = 200      # walks in a row to schedules timed before, after which it has nothing new
MADE = {str(action): action for action in ACTIONS[2:]}


def bayesian(problem, rng):
    """Walks that the estimator proposes, told the logarithm of their time.

    Raises
    ------
    ModuleNotFoundError
        Without optuna, of the extra ``tune``.
    """
    timed, stale = {problem.start: (yield problem.start)}, 0
    study = _study(rng.getrandbits(32))
    while stale < STALE:
        trial = study.ask()
        schedule = walked(problem, _moves(trial))
        stale = stale + 1 if schedule in timed else 0
        if not stale:
            timed[schedule] = yield schedule
        study.tell(trial, math.log(timed[schedule]))


def walked(problem, moves):
    """The schedule after moves from the start, each an (action, place from 0 to 1)."""
    schedule = problem.start
    for action, place in moves:
        count = len(schedule.loops)
        first = min(int(place * count), count - 1)
        for k in range(count):
            with contextlib.suppress(IllegalSchedule):
                schedule = act(State(problem, schedule, (first + k) % count), action).schedule
                break
    return schedule


def _moves(trial):
    """A walk's moves; all are asked for, those beyond its length too, for the estimator wants one space."""
    moves = [(MADE[trial.suggest_categorical(f"action {i}", list(MADE))], trial.suggest_float(f"place {i}", 0, 1))
             for i in range(MOVES)]
    return moves[:trial.suggest_int("moves", 1, MOVES)]


def _study(seed):
    import optuna  # optional, and slow to import

    logging.getLogger("optuna").setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(multivariate=True, seed=seed)  # the moves of a walk depend on each other
    return optuna.create_study(sampler=sampler)

"""The policy: it walks from the start schedule by actions that it learned, and proposes what its judges think best.

Alone, it measures nothing (`best`).  As a search (`policy`) its proposals are timed, best first; what is learned of the
problem at hand corrects the judges (`Correction`), and walks set out again from the best that was found.
"""
import functools
import math
import random
from dataclasses import dataclass

import numpy as np
import torch

from znn.tuner.agent import weights
from znn.tuner.agent.examples import seen
from znn.tuner.moves import ACTIONS, State, act, mask, neighbour
from znn.tuner.observation import observe

WALKS, STEPS = 6, 12  # at once, and actions of a walk
EXPLORE = 0.25        # part of actions that are any legal one, equally likely
MARGIN = 0.02         # predicted gain, in log time, below which the start schedule stays
ROUND = 6             # schedules timed before walking again
RIDGE = 1.0           # of the correction


@dataclass(frozen=True)
class Policy:
    """Judges and an actor, of `weights.load`."""

    judges: torch.nn.Module
    actor: torch.nn.Module

    @torch.no_grad()
    def walks(self, problem, schedule, rng, count=WALKS, steps=STEPS):
        """Schedules that walks from a schedule come by, each once, without it.

        Parameters
        ----------
        problem : Problem
        schedule : Schedule
        rng : random.Random
        count, steps : int
        """
        states = [State(problem, schedule)] * count
        found, masks = {}, {}
        for _ in range(steps):
            for state in states:
                if state not in masks:
                    masks[state] = mask(state)
            states = [state for state in states if masks[state].any()]
            if not states:
                break
            logits = self.actor(torch.from_numpy(np.stack([observe(state) for state in states])))[0]
            legal = torch.from_numpy(np.stack([masks[state] for state in states]))
            likely = torch.softmax(logits.masked_fill(~legal, -math.inf), 1)
            likely = (1 - EXPLORE) * likely + EXPLORE * legal / legal.sum(1, keepdim=True)
            states = [act(state, ACTIONS[rng.choices(range(len(ACTIONS)), p)[0]])
                      for state, p in zip(states, likely.tolist())]
            found.update(dict.fromkeys(state.schedule for state in states))
        found.pop(schedule, None)
        return list(found)

    @torch.no_grad()
    def judged(self, problem, schedules):
        """Judgements of schedules, and what the judges see in them; (n,) and (n, features)."""
        observations = torch.from_numpy(np.stack([seen(problem, schedule) for schedule in schedules]))
        features = torch.cat([judge.features(observations) for judge in self.judges.members], 1)
        return self.judges(observations).numpy(), features.numpy()


class Correction:
    """By how much judgements of a problem are wrong: ridge regression on what the judges see, after few timings.

    Between problems the judges know what is faster; of this one they learn the rest from what was timed.
    """

    def __init__(self, features, errors):
        self._known = features
        self._weights = np.linalg.solve(self._kernel(features) + RIDGE * np.eye(len(features)), errors)

    def __call__(self, features):
        """Corrections for schedules with such features; (n,)."""
        return self._kernel(features) @ self._weights

    def _kernel(self, features):
        distance = np.square(features[:, None] - self._known).mean(-1)
        return np.exp(-distance)


@functools.cache
def shipped():
    """The policy that comes with the package."""
    return Policy(*weights.load())


def best(problem, seed=0):
    """The schedule that the policy thinks best, without measuring; the start schedule where nothing promises more."""
    return next(policy(problem, random.Random(seed)))


def policy(problem, rng):
    """A search: what the policy thinks best, the start, then its further proposals, learning from what was timed."""
    mind = shipped()
    pool = mind.walks(problem, problem.start, rng)
    first = _choice(mind, problem, pool)
    times = {first: (yield first)}
    if first != problem.start:
        times[problem.start] = yield problem.start
    while True:
        here = min(times, key=times.get)
        pool = [schedule for schedule in pool if schedule not in times] or [neighbour(problem, here, rng)]
        for schedule in _promising(mind, problem, times, pool)[:ROUND]:
            times[schedule] = yield schedule
        pool = list(dict.fromkeys([*pool, *mind.walks(problem, min(times, key=times.get), rng)]))


def _choice(mind, problem, pool):
    """Of the pool and the start what is judged best; the start unless something is clearly better."""
    if not pool:
        return problem.start
    judgements, _ = mind.judged(problem, [problem.start, *pool])
    first = int(judgements[1:].argmax())
    return pool[first] if judgements[1 + first] > judgements[0] + MARGIN else problem.start


def _promising(mind, problem, times, pool):
    """The pool, best first, by the corrected judgement."""
    timed = [schedule for schedule, seconds in times.items() if seconds < math.inf]
    judgements, features = mind.judged(problem, [*timed, *pool])
    expected = judgements[len(timed):]
    if timed:
        gains = np.array([math.log(times[timed[0]] / times[schedule]) for schedule in timed])
        correction = Correction(features[:len(timed)], gains - (judgements[:len(timed)] - judgements[0]))
        expected = expected + correction(features[len(timed):])
    return [pool[i] for i in np.argsort(-expected, kind="stable")]

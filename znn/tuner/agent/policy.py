"""The policy: its actor walks by actions that it learned, its judges say which of the schedules on the way is best.

Alone, it measures nothing (`best`).  As a search (`policy`) what the judges think best is timed; after every timing
what was learned of the problem at hand corrects them (`Correction`), and there is more to choose from around the best.
"""
import functools
import math
import random
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import ndtr

from znn.tuner.agent import weights
from znn.tuner.agent.examples import seen
from znn.tuner.moves import ACTIONS, State, act, mask, neighbour, neighbours
from znn.tuner.observation import observe

WALKS, STEPS = 6, 12  # at once, and actions of a walk
EXPLORE = 0.25        # part of actions that are any legal one, equally likely
MARGIN = 0.04         # predicted gain, in log time, below which the start schedule stays
FIRST = 6             # timings, the start's included, before the actor walks: what is nearest is soonest judged
AHEAD = 2             # schedules by judgement whose neighbours are looked at before anything is timed
TRUST = 0.1           # standard deviation, in log time, of what the judges do not know of a problem
DOUBT = 0.3           # by how much that rises with the loss they foresee: of what they think bad they know the least
NOISE = 0.03          # of a timing, in log time
REACH = 0.25          # root mean square distance of features within which schedules are alike


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
        judgements, features = self.judges.seen(observations)
        return judgements.numpy(), features.numpy()


class Correction:
    """By how much judgements of a problem are wrong, after few timings: a Gaussian process on what the judges see.

    Between problems the judges know what is faster; of this one they learn the rest from what was timed (Rasmussen and
    Williams, Gaussian Processes for Machine Learning, 2006, equation 2.25).

    Parameters
    ----------
    features : ndarray, (n, features)
        Of what was timed.
    judged, errors : ndarray, (n,)
        In log time over the start: what it was judged to gain, and how much more it did gain.
    """

    def __init__(self, features, judged, errors):
        self._timed, self._doubts = features, doubt(judged)
        self._inverse = np.linalg.inv(self._alike(features, judged) + NOISE ** 2 * np.eye(len(features)))
        self._weights = self._inverse @ errors

    def __call__(self, features, judged):
        """Corrections for schedules of such features and judgements, and what is still not known of them; (n,) and
        (n,)."""
        alike = self._alike(features, judged)
        known = (alike @ self._inverse * alike).sum(1)
        return alike @ self._weights, np.sqrt(np.maximum(doubt(judged) ** 2 - known, 0))

    def _alike(self, features, judged):
        distance = np.square(features[:, None] - self._timed).mean(-1)
        return doubt(judged)[:, None] * np.exp(-distance / REACH ** 2) * self._doubts


def doubt(judged):
    """Standard deviation, in log time, of what is judged to gain so much, before anything is timed."""
    return TRUST + DOUBT * np.maximum(-judged, 0)


def improvement(mean, deviation):
    """Expected positive part of what is normally distributed."""
    deviation = np.maximum(deviation, 1e-6)
    ratio = mean / deviation
    return mean * ndtr(ratio) + deviation * np.exp(-ratio ** 2 / 2) / math.sqrt(2 * math.pi)


@functools.cache
def shipped():
    """The policy that comes with the package."""
    return Policy(*weights.load())


def best(problem, seed=0):
    """The schedule that the policy thinks best, without measuring; the start schedule where nothing promises more."""
    pool = Pool(shipped(), problem)
    pool.walk(random.Random(seed))
    pool.look_ahead()
    first = pool.promising({})
    return first if pool.gain(first) > MARGIN else problem.start


def policy(problem, rng):
    """A search: the start, then what the policy expects most of, learning from what was timed.

    There is the more to choose from the more was timed: what is one move from the start and from what is best by
    judgement, what is around the best so far, after `FIRST` timings what the actor's walks come by.
    """
    pool = Pool(shipped(), problem)
    times = {problem.start: (yield problem.start)}
    pool.look_ahead()
    while True:
        if len(times) == FIRST:
            pool.walk(rng)
        pool.around(min(times, key=times.get))
        schedule = pool.promising(times) or neighbour(problem, rng.choice(list(times)), rng)
        times[schedule] = yield schedule


class Pool:
    """Schedules of a problem to choose from, and what the judges make of each.

    Parameters
    ----------
    mind : Policy
    problem : Problem
    """

    def __init__(self, mind, problem):
        self._mind, self._problem = mind, problem
        self._number, self._centres = {}, set()
        self._judgements, self._features = np.empty(0, np.float32), None
        self._add([problem.start])

    def walk(self, rng):
        """Let in what the actor's walks from the start come by."""
        self._add(self._mind.walks(self._problem, self._problem.start, rng))

    def look_ahead(self):
        """Let in what is one move from the start, then from the best by judgement."""
        self.around(self._problem.start)
        for _ in range(AHEAD):
            self.around(self.promising({}))

    def around(self, schedule):
        """Let in, once, what is one move from a schedule."""
        if schedule is not None and schedule not in self._centres:
            self._centres.add(schedule)
            self._add(neighbours(self._problem, schedule))

    def gain(self, schedule):
        """In log time over the start, as judged before anything is timed."""
        return self._judgements[self._number[schedule]] - self._judgements[0] if schedule is not None else 0.0

    def promising(self, times):
        """The best by judgement of what is not timed and not the start; None of none.

        Once the start is timed, what may be expected to be gained over the best so far counts (Jones et al., Journal of
        Global Optimization 13, 1998): what is like nothing that was tried may be much better than it is judged.
        """
        left = np.ones(len(self._number), bool)
        left[[0, *(self._number[schedule] for schedule in times if schedule in self._number)]] = False
        if not left.any():
            return None
        expected = self._judgements - self._judgements[0]
        timed = [schedule for schedule, seconds in times.items() if seconds < math.inf and schedule in self._number]
        if self._problem.start in timed:
            at = [self._number[schedule] for schedule in timed]
            gains = np.log([times[self._problem.start] / times[schedule] for schedule in timed])
            correction = Correction(self._features[at], expected[at], gains - expected[at])
            errors, unknown = correction(self._features, expected)
            expected = improvement(expected + errors - gains.max(), unknown)
        return list(self._number)[np.where(left, expected, -np.inf).argmax()]

    def _add(self, schedules):
        new = [schedule for schedule in dict.fromkeys(schedules) if schedule not in self._number]
        if new:
            judgements, features = self._mind.judged(self._problem, new)
            self._number.update(zip(new, range(len(self._number), len(self._number) + len(new))))
            self._judgements = np.append(self._judgements, judgements)
            self._features = features if self._features is None else np.concatenate([self._features, features])

"""Fitting a judge to measurements: within each problem it must know what is faster, and by how much.

The loss compares every schedule with its problem's start schedule, as the difference of two judgements with the
logarithm of the quotient of two times; what problems have in common need not be learned.
"""
import math

import numpy as np
import torch
from torch.nn import functional

from znn.tuner.agent.examples import seen
from znn.tuner.agent.network import Judge
from znn.tuner.table import Result

RATE, DECAY, BATCH = 2e-3, 0.01, 128
WORST, BEST = -1.0, 0.5  # gains beyond are as bad, as good
SCALE = 4.0              # of gains to losses


def fit(examples, epochs, seed=0):
    """A judge of what is in `examples`.

    Parameters
    ----------
    examples : Examples
    epochs : int
    seed : int

    Returns
    -------
    Judge
    """
    torch.manual_seed(seed)
    rng, judge = np.random.default_rng(seed), Judge()
    observations, start = torch.from_numpy(examples.observations), torch.from_numpy(examples.start)
    gains = torch.from_numpy(examples.gains).clamp(WORST, BEST)
    others = np.flatnonzero(examples.start != np.arange(len(gains)))
    steps = math.ceil(len(others) / BATCH)
    optimiser = torch.optim.AdamW(judge.parameters(), RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, epochs * steps)
    for _ in range(epochs):
        for batch in np.array_split(rng.permutation(others), steps):
            judged = judge(torch.cat([observations[batch], observations[start[batch]]]))
            difference = judged[:len(batch)] - judged[len(batch):]
            loss = functional.smooth_l1_loss(SCALE * difference, SCALE * gains[batch])
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(judge.parameters(), 1)
            optimiser.step()
            schedule.step()
    return judge.eval()


@torch.no_grad()
def judged(judge, observations, batch=512):
    """Judgements of observations, (n,); float32 array."""
    return np.concatenate([judge(torch.from_numpy(observations[i:i + batch])).numpy()
                           for i in range(0, len(observations), batch)])


def regret(examples, judgements, picks=1):
    """How far the best of the first `picks` by judgement is behind the best, in log time; mean over problems."""
    behind = []
    for group in np.unique(examples.group):
        mine = np.flatnonzero(examples.group == group)
        first = mine[np.argsort(-judgements[mine].astype(float))[:picks]]
        behind.append(examples.gains[mine].max() - examples.gains[first].max())
    return float(np.mean(behind))


class Judged:
    """Measures by judgement: results of a table where it has them, else what the judge makes of the schedule.

    Called as ``measure(problem, schedule)`` by an environment; problems' start schedules must be in the table.
    """

    def __init__(self, judge, table):
        self._judge, self._table, self._known = judge, table, {}

    def __call__(self, problem, schedule):
        known = self._table.get(problem, schedule)
        return known if known else self._predicted(problem, schedule)

    def _predicted(self, problem, schedule):
        start = self._table.measure(problem, problem.start)
        quotient = math.exp(min(self._value(problem, schedule) - self._value(problem, problem.start), BEST))
        return Result(start.seconds / quotient, start.share * quotient)

    def _value(self, problem, schedule):
        key = problem, schedule
        if key not in self._known:
            self._known[key] = float(judged(self._judge, seen(problem, schedule)[None])[0])
        return self._known[key]

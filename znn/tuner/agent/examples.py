"""Measured schedules as examples to learn from."""
import math
from dataclasses import dataclass

import numpy as np

from znn.loops import IllegalSchedule, Schedule
from znn.tuner.moves import State
from znn.tuner.observation import observe


@dataclass(frozen=True)
class Examples:
    """Schedules of several problems.

    Attributes
    ----------
    observations : ndarray, (n, SIZE), float32
        Without a cursor.
    gains : ndarray, (n,), float32
        log(seconds of the start schedule / seconds).
    group : ndarray, (n,), int
        Number of the problem.
    start : ndarray, (n,), int
        Number of the example that has the problem's start schedule.
    """

    observations: np.ndarray
    gains: np.ndarray
    group: np.ndarray
    start: np.ndarray

    def of(self, groups):
        """Those of some problems."""
        kept = np.isin(self.group, list(groups))
        number = np.cumsum(kept) - 1
        return Examples(self.observations[kept], self.gains[kept], self.group[kept], number[self.start[kept]])


def seen(problem, schedule):
    """Observation of a schedule without a cursor; (SIZE,), float32."""
    return observe(State(problem, schedule, cursor=None))


def examples(table, problems):
    """What a table holds of problems whose start schedule it holds."""
    observations, gains, group, start = [], [], [], []
    for number, problem in enumerate(problems):
        found = table.of(problem)
        first = found.pop(str(problem.start), None)
        if first is None or first.failure:
            continue
        at = len(gains)
        for text, result in [(str(problem.start), first), *found.items()]:
            if result.failure:
                continue
            try:
                observations.append(seen(problem, Schedule.parse(text)))
            except IllegalSchedule:  # in a table of an older space
                continue
            gains.append(math.log(first.seconds / result.seconds))
            group.append(number)
            start.append(at)
    return Examples(np.array(observations, np.float32), np.array(gains, np.float32), np.array(group), np.array(start))

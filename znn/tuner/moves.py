"""The action space: a schedule with a cursor on one of its loops, changed at the cursor by one action at a time.

Every action is a pure function from a state to a state; `mask` says exactly which are legal.  The cursor stays with the
loop it is on; after a split it is on the new, outer loop.
"""
import contextlib
import itertools
from dataclasses import dataclass, replace

import numpy as np

from znn.loops import IllegalSchedule, Schedule
from znn.loops.schedule import MARKS
from znn.tuner.problem import Problem

FACTORS = (2, 3, 4, 5, 6, 8, 12)  # that a loop is split by
VECTORS = (1, 2, 3, 4, 6)         # or so many vectors


@dataclass(frozen=True)
class State:
    """A problem, a schedule that is possible for it, and the loop that the next action is about."""

    problem: Problem
    schedule: Schedule
    cursor: int = 0


@dataclass(frozen=True)
class Action:
    """What to do at the cursor: "up", "down", "swap up", "swap down", "split", "split lanes", "join" or "mark".

    `argument` is the factor of a split, in vectors for "split lanes", or the mark.
    """

    name: str
    argument: object = None

    def __str__(self):
        return self.name if self.argument is None else f"{self.name} {self.argument or 'plain'}"


ACTIONS = (*map(Action, ("up", "down", "swap up", "swap down", "join")), *(Action("mark", m) for m in MARKS),
           *(Action("split", f) for f in FACTORS), *(Action("split lanes", v) for v in VECTORS))


def act(state, action):
    """The state after an action.

    Raises
    ------
    IllegalSchedule
        If there is nothing to move the cursor to, the mark is there already, or the schedule would not be possible.
    """
    if action.name in ("up", "down"):
        return _move_cursor(state, -1 if action.name == "up" else 1)
    schedule, cursor = changed(state, action)
    state.problem.plan(schedule)
    return replace(state, schedule=schedule, cursor=cursor)


def mask(state):
    """Which of `ACTIONS` are legal; bool, (len(ACTIONS),)."""
    return np.array([_legal(state, action) for action in ACTIONS])


def neighbours(problem, schedule):
    """The schedules one action away from a schedule, wherever the cursor is; each once."""
    found = {}
    for cursor in range(len(schedule.loops)):
        for action in ACTIONS[2:]:
            with contextlib.suppress(IllegalSchedule):
                found[act(State(problem, schedule, cursor), action).schedule] = None
    return list(found)


def neighbour(problem, schedule, rng):
    """A schedule one random action away, each legal action at each cursor as likely; itself if there is none.

    `rng` is a `random.Random`.
    """
    tries = list(itertools.product(range(len(schedule.loops)), ACTIONS[2:]))
    for cursor, action in rng.sample(tries, len(tries)):
        with contextlib.suppress(IllegalSchedule):
            return act(State(problem, schedule, cursor), action).schedule
    return schedule


def changed(state, action):
    """Schedule, legal for the contraction, and cursor after an action that changes the schedule."""
    schedule, contraction, i = state.schedule, state.problem.contraction, state.cursor
    match action.name:
        case "swap up":
            return schedule.swap(contraction, i - 1), i - 1
        case "swap down":
            return schedule.swap(contraction, i), i + 1
        case "join":
            return schedule.join(contraction, i), i
        case "split":
            return _split(schedule, contraction, i, action.argument), i
        case "split lanes":
            return _split(schedule, contraction, i, action.argument * state.problem.lanes), i
        case "mark":
            return _marked(schedule, contraction, i, action.argument), i
    raise ValueError(f"unknown action {action.name!r}")


def _move_cursor(state, step):
    cursor = state.cursor + step
    if not 0 <= cursor < len(state.schedule.loops):
        raise IllegalSchedule(f"there is no loop {cursor} to go to")
    return replace(state, cursor=cursor)


def _split(schedule, contraction, i, factor):
    """A vector loop inside an unrolled one is split too: the outer part is unrolled then, not plain."""
    marks = [loop.mark for loop in schedule.loops[max(i - 1, 0):i + 1]]
    if marks == ["unroll", "vector"]:
        return schedule.mark(contraction, i, "unroll").split(contraction, i, factor).mark(contraction, i + 1, "vector")
    return schedule.split(contraction, i, factor)


def _marked(schedule, contraction, i, mark):
    if i < len(schedule.loops) and schedule.loops[i].mark == mark:
        raise IllegalSchedule(f"loop {i} ({schedule.loops[i]}) is marked {mark or 'plain'} already")
    return schedule.mark(contraction, i, mark)


def _legal(state, action):
    try:
        act(state, action)
    except IllegalSchedule:
        return False
    return True

"""The best constant recipe: for each kind of contraction one list of changes, the same for every problem.

What a policy must beat to be more than a list of good habits.  A step names a dimension, which of its loops, and one
of `moves.ACTIONS`: ``co outer: split 2``.  Steps that are illegal for a problem are skipped.  The recipes in
recipe.json were found on the training set by `finding`.
"""
import contextlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from znn.loops import IllegalSchedule
from znn.tuner.moves import ACTIONS, State, changed

FILE = Path(__file__).with_name("recipe.json")


@dataclass(frozen=True)
class Step:
    """A change of the outermost or innermost loop of a dimension; prints as text and reads back."""

    dim: str
    which: str
    action: str

    def __str__(self):
        return f"{self.dim} {self.which}: {self.action}"

    @classmethod
    def parse(cls, text):
        """The step that prints as `text`."""
        place, action = text.split(": ")
        return cls(*place.split(), action)

    def __call__(self, problem, schedule):
        """The schedule after the step; itself where it is illegal."""
        there = self.changed(problem, schedule)
        return schedule if problem.refusal(there) else there

    def changed(self, problem, schedule):
        """As called, but whether the schedule is possible for the problem is not asked: fast."""
        at = [i for i, loop in enumerate(schedule.loops) if loop.dim == self.dim]
        with contextlib.suppress(IllegalSchedule, IndexError):
            cursor = at[0 if self.which == "outer" else -1]
            return changed(State(problem, schedule, cursor), actions()[self.action])[0]
        return schedule


def applied(steps, problem):
    """The problem's start after a recipe."""
    schedule = problem.start
    for step in steps:
        schedule = step(problem, schedule)
    return schedule


def best(problem):
    """What the recipe for the problem's kind of contraction makes of its start."""
    return applied([Step.parse(text) for text in _recipes().get(problem.contraction.name, ())], problem)


def constant(problem, rng):
    """The start, then what the recipe makes of it."""
    yield problem.start
    yield best(problem)


@cache
def actions():
    """The actions of steps by their text."""
    return {str(action): action for action in ACTIONS[2:]}


@cache
def _recipes():
    return json.loads(FILE.read_text(encoding="utf-8"))

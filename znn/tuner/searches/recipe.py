"""The best constant recipe: for each kind of contraction one list of changes, the same for every problem.

What a policy must beat to be more than a list of good habits.  A step names a dimension, which of its loops, and one
of `moves.ACTIONS`: ``co outer: split 2``.  Steps that are illegal for a problem are skipped.  The recipes in
recipe.json were found on the training set: `proposed` ranks steps by what they gained in a table of measurements,
`found` chooses among them by measuring::

    python -m znn.tuner.searches.recipe TABLE            # writes recipe.json; what is measured goes into the table
"""
import argparse
import contextlib
import itertools
import json
import math
import random
import statistics
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from znn.codegen import target
from znn.loops import IllegalSchedule, Schedule
from znn.tuner.measuring import Measurer
from znn.tuner.moves import ACTIONS, State, act
from znn.tuner.table import Table
from znn.tuner.workloads import published

FILE = Path(__file__).with_name("recipe.json")
LENGTH = 3       # steps of a recipe, at most
CANDIDATES = 6   # steps that are tried at each place
PROBLEMS = 10    # of each kind that they are tried on
WORTH = 0.005    # gain in the mean logarithm that a further step must bring
SEEN = 3         # problems that a step must have been measured on to be proposed
FAILED = -1.0    # counts as a gain, in the logarithm, where a schedule has no time


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
        at = [i for i, loop in enumerate(schedule.loops) if loop.dim == self.dim]
        with contextlib.suppress(IllegalSchedule, IndexError):
            cursor = at[0 if self.which == "outer" else -1]
            return act(State(problem, schedule, cursor), _actions()[self.action]).schedule
        return schedule


def applied(steps, problem):
    """The problem's start after a recipe."""
    schedule = problem.start
    for step in steps:
        schedule = step(problem, schedule)
    return schedule


def constant(problem, rng):
    """The start, then what the recipe for the problem's kind of contraction makes of it."""
    yield problem.start
    yield applied([Step.parse(text) for text in _recipes().get(problem.contraction.name, ())], problem)


def proposed(problems, table):
    """Steps by the mean gain, in the logarithm, over problems with results of both sides; best first."""
    gains = defaultdict(list)
    for problem in problems:
        seconds, of_problem = {text: r.seconds for text, r in table.of(problem).items()}, defaultdict(list)
        for text, before in seconds.items():
            schedule = Schedule.parse(text)
            for step in _steps(schedule) if before < math.inf else ():
                after = seconds.get(str(there := step(problem, schedule)))
                if there != schedule and after is not None:
                    of_problem[step].append(_gain(before, after))
        for step, found in of_problem.items():
            gains[step].append(statistics.fmean(found))
    return sorted((s for s in gains if len(gains[s]) >= SEEN), key=lambda s: -statistics.fmean(gains[s]))


def found(problems, candidates, measure, length=LENGTH):
    """The best recipe that adds one candidate after the other, and its mean gain in the logarithm.

    Parameters
    ----------
    problems : list of Problem
    candidates : list of Step
    measure : callable
        ``measure(problem, schedule)`` is a `Result`.
    length : int
    """
    def gain(steps):
        return statistics.fmean(_gain(measure(p, p.start).seconds, measure(p, applied(steps, p)).seconds)
                                for p in problems)

    recipe, best = [], 0.0
    for _ in range(length):
        tried = [(gain([*recipe, step]), k) for k, step in enumerate(candidates)]
        value, k = max(tried, default=(0.0, 0))
        if value < best + WORTH:
            break
        recipe, best = [*recipe, candidates[k]], value
    return recipe, best


def _gain(before, after):
    return math.log(before / after) if after < math.inf else FAILED


def _steps(schedule):
    dims = dict.fromkeys(loop.dim for loop in schedule.loops)
    return [Step(*s) for s in itertools.product(dims, ("outer", "inner"), _actions())]


@cache
def _actions():
    return {str(action): action for action in ACTIONS[2:]}


@cache
def _recipes():
    return json.loads(FILE.read_text(encoding="utf-8"))


def main():
    """Find the recipes for the current target and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", help="results of the training set, JSON lines")
    parser.add_argument("--each", type=int, default=2, help="convolutions of each family, as `published` has it")
    args = parser.parse_args()
    table, kinds = Table(args.table), defaultdict(list)
    for workload in published("train", target.current(), each=args.each):
        kinds[workload.problem.contraction.name].append(workload.problem)
    measurer, recipes = Measurer(table, patience=0.1), {}
    for kind, problems in kinds.items():
        candidates = proposed(problems, table)[:CANDIDATES]
        some = random.Random(0).sample(problems, min(PROBLEMS, len(problems)))
        steps, gain = found(some, candidates, measurer.measure)
        recipes[kind] = [str(step) for step in steps]
        print(f"{kind}: {', '.join(recipes[kind]) or 'nothing'}, {math.exp(gain):.3f} times as fast", flush=True)
    part = FILE.with_suffix(".part")
    part.write_text(json.dumps(recipes, indent=1) + "\n", encoding="utf-8")
    part.replace(FILE)


if __name__ == "__main__":
    main()

"""Finding the constant recipes: what gained in a table of measurements is tried, step after step, by measuring.

    python -m znn.tuner.searches.finding TABLE       # writes recipe.json; what is measured goes into the table
"""
import argparse
import itertools
import json
import math
import random
import statistics
from collections import defaultdict

from znn.codegen import target
from znn.loops import Schedule
from znn.runtime.files import replacing
from znn.tuner.measuring import Measurer
from znn.tuner.searches.recipe import FILE, Step, actions, applied
from znn.tuner.table import Table
from znn.tuner.workloads import published

LENGTH = 3       # steps of a recipe, at most
CANDIDATES = 10  # steps that are tried at each place
PROBLEMS = 24    # of each kind that they are tried on
WORTH = 0.005    # gain in the mean logarithm that a further step must bring
SEEN = 3         # problems that a step must have been measured on to be proposed
FAILED = -1.0    # counts as a gain, in the logarithm, where a schedule has no time
NEAR = 1.1       # times the start's time: as good as it


def proposed(problems, table):
    """Steps by their gain, in the logarithm, added up over problems; best first.

    Those count that were taken from a schedule about as good as the start: what mends a bad one is no help to it.
    """
    gains = defaultdict(list)
    for problem in problems:
        seconds, of_problem = {text: r.seconds for text, r in table.of(problem).items()}, defaultdict(list)
        limit = NEAR * seconds.get(str(problem.start), 0.0)
        for text, before in seconds.items():
            schedule = Schedule.parse(text)
            for step in _steps(schedule) if before <= limit else ():
                after = seconds.get(str(there := step.changed(problem, schedule)))
                if there != schedule and after is not None:
                    of_problem[step].append(_gain(before, after))
        for step, found in of_problem.items():
            gains[step].append(statistics.fmean(found))
    return sorted((s for s in gains if len(gains[s]) >= SEEN), key=lambda s: -sum(gains[s]))


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
    return [Step(*s) for s in itertools.product(dims, ("outer", "inner"), actions())]


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
    with replacing(FILE) as written:
        written.write_text(json.dumps(recipes, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""How far measurements of the same schedule lie apart: its time alone, and its time by the start's, timed in turn.

    python benchmarks/scatter.py --problems 12 --times 8

Each time begins anew: kernels are compiled, operands made, nothing is remembered.
"""
import argparse
import math
import random
import statistics

from znn.codegen import target
from znn.tuner.measuring import Measurer
from znn.tuner.moves import neighbour
from znn.tuner.workloads import published


def scatter(problem, schedule, times):
    """Standard deviations of the logarithms of a start's time, and of a schedule's time by it."""
    alone, relative = [], []
    for _ in range(times):
        measurer = Measurer()
        start, other = (measurer.measure(problem, s).seconds for s in (problem.start, schedule))
        alone.append(math.log(start))
        relative.append(math.log(other / start))
    return statistics.stdev(alone), statistics.stdev(relative)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=12)
    parser.add_argument("--times", type=int, default=8)
    args = parser.parse_args()
    rng = random.Random(0)
    print("| kernel | start | by the start |\n|---|---|---|")
    found = []
    for workload in rng.sample(published("train", target.current()), args.problems):
        found.append(scatter(workload.problem, neighbour(workload.problem, workload.problem.start, rng), args.times))
        print(f"| {workload.name} | {found[-1][0]:.1%} | {found[-1][1]:.1%} |", flush=True)
    print("| median | " + " | ".join(f"{statistics.median(column):.1%}" for column in zip(*found)) + " |")


if __name__ == "__main__":
    main()

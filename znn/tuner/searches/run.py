"""Running a search: what it proposes is measured, within a budget.

A search is a generator function ``strategy(problem, rng)`` that yields the schedule to time next and is sent its
seconds, infinite for a failure.  It knows neither clocks nor kernels, so that all searches are counted alike.
"""
import math
import time
from dataclasses import dataclass

REPEATS = 1000  # schedules proposed in a row that are timed already, after which a search has nothing new


@dataclass(frozen=True)
class Budget:
    """How much a search may use: measurements, and seconds of everything that it does."""

    measurements: float = math.inf
    seconds: float = math.inf


def run(strategy, problem, measure, budget, rng, clock=time.perf_counter):
    """Search, and yield what is measured as it is.

    Parameters
    ----------
    strategy : callable
        One of `SEARCHES`, or another generator function of the same kind.
    problem : Problem
    measure : callable
        ``measure(problem, schedule)`` is a `Result`.
    budget : Budget
        A measurement that has begun is finished.
    rng : random.Random
    clock : callable
        Seconds, from anywhere.

    Yields
    ------
    schedule : Schedule
    seconds : float
        Each schedule once; infinite for a failure.
    """
    end, timed, repeats = clock() + budget.seconds, {}, 0
    proposals = strategy(problem, rng)
    try:
        schedule = next(proposals)
        while repeats < REPEATS:
            if schedule in timed:
                repeats += 1
            elif len(timed) >= budget.measurements or clock() >= end:
                return
            else:
                repeats = 0
                timed[schedule] = measure(problem, schedule).seconds
                yield schedule, timed[schedule]
            schedule = proposals.send(timed[schedule])
    except StopIteration:
        return


def best_so_far(found):
    """The best (schedule, seconds) after each of those found; of none is there nothing."""
    best = None
    for entry in found:
        if best is None or entry[1] < best[1]:
            best = entry
        yield best

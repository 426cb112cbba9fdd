"""Which of the schedules that a search timed is the best: the first few again, in turn with the default.

The best of many single timings is a lucky one; and a schedule takes the default's place only if it is faster by more
than the measurements' noise.
"""
import math

SEARCHING = 0.75  # part of a kernel's seconds that is searched in; the rest is for this
FINALISTS = 2     # of a search
LONGEST = 1.0     # seconds of measuring one of them
SURE = 2.0        # standard errors by which a schedule must be faster than the default


def finalists(problem, found, others=()):
    """The default, others that compete, and the fastest few of those found; each once.

    Parameters
    ----------
    problem : Problem
    found : list of (Schedule, float)
        Schedules and their seconds, infinite for failures.
    others : iterable of Schedule

    Returns
    -------
    list of Schedule
    """
    timed = sorted((entry for entry in found if entry[1] < math.inf), key=lambda entry: entry[1])
    return list(dict.fromkeys([problem.start, *others, *(schedule for schedule, _ in timed[:FINALISTS])]))


def settled(measurer, problem, schedules, seconds):
    """Measure finalists within about so many seconds.

    Parameters
    ----------
    measurer : Measurer
    problem : Problem
    schedules : list of Schedule
        As `finalists` has them.
    seconds : float

    Returns
    -------
    list of Result
    int
        Number of the winner.
    """
    results = measurer.again(problem, schedules, patience=min(LONGEST, seconds / len(schedules)))
    return results, winner(results)


def winner(results):
    """Number of the fastest; 0, the default's, unless it is surely faster than that."""
    fastest = min(range(len(results)), key=lambda i: results[i].seconds)
    noise = SURE * math.hypot(results[0].spread, results[fastest].spread)
    return fastest if results[fastest].seconds * (1 + noise) < results[0].seconds else 0

"""How long a schedule takes: its kernel in turns with one that only multiplies in registers, whatever the clock does.

A processor's frequency drifts, and others use it, too.  Each round therefore times the kernel and, right after it, a
reference of a known number of operations; the median of the ratios is the share of the peak, and the time follows from
it and from the peak measured at the beginning.  Rounds end when the median is known well enough.  Threads stay on their
processors meanwhile (`pinning`).

There is no other time-out than this: compiling is bounded by `problem.MAX_INSTRUCTIONS`, and a kernel that takes longer
than the patience runs twice, once to be checked and once to be timed.  The slowest of 2600 schedules at random took 70
times as long as the best of their problem.
"""
import contextlib
import math
import statistics
import time
from dataclasses import replace

import numba

from znn.codegen import target
from znn.loops import IllegalSchedule
from znn.tuner.bench import Bench, Incorrect
from znn.tuner.peak import peak
from znn.tuner.pinning import pinned
from znn.tuner.table import Result, Table

FEWEST, MOST = 9, 40      # rounds
REFERENCE_STEPS = 10_000  # of the reference: half a millisecond, in which starting threads does not count
SHORTEST = 500e-6         # seconds that are timed at once; shorter kernels are run several times
PEAK_ROUNDS = 51
GROWTH = 10               # at most, of repeats at once
LOST, LOST_ROUNDS = 1.1, 3  # times as long as the best so far, so often: slower for sure


class Measurer:
    """Times schedules, each once.

    Parameters
    ----------
    table : Table, optional
        Where results are looked up and kept; one in memory unless given.
    spread : float
        Relative standard error of the median to measure down to.
    patience : float
        Seconds after which a schedule is measured well enough anyway.
    """

    def __init__(self, table=None, spread=0.02, patience=0.2):
        self.table = Table() if table is None else table
        self._spread, self._patience = spread, patience
        self._bench, self._references, self._least = None, {}, {}

    def measure(self, problem, schedule):
        """The result of a schedule, from the table if it is there.

        It is measured in turn with the problem's start, and relative to that: what else the memory is busy with slows
        both.

        Parameters
        ----------
        problem : Problem
        schedule : Schedule

        Returns
        -------
        Result
            A failed one, with the reason, if the schedule is not possible, LLVM cannot compile it, or its kernel
            computes something else than the start schedule's.
        """
        known = self.table.get(problem, schedule)
        if known is None:
            with _circumstances(problem):
                known = self._beside_the_start(problem, schedule) if schedule != problem.start else self._start(problem)
            self.table.add(problem, schedule, known)
        self._least[problem] = min(known.seconds, self._least.get(problem, math.inf))
        return known

    def again(self, problem, schedules, spread=0.005, patience=2.0):
        """Results of schedules, all in turn in the same rounds and whatever the table says: to tell the best from the
        lucky.  They are not kept."""
        return self._measure(problem, schedules, spread, patience)

    def _measure(self, problem, schedules, spread, patience):
        with _circumstances(problem):
            built = [self._built(problem, schedule) for schedule in schedules]
            kernels = [kernel for kernel, _ in built if kernel]
            timed = iter(self._results(problem, kernels, spread, patience) if kernels else ())
            return [next(timed) if kernel else failed for kernel, failed in built]

    def _built(self, problem, schedule):
        """Kernel and None, or None and a failed result."""
        try:
            return self._on(problem).kernel(schedule), None
        except (IllegalSchedule, Incorrect, RuntimeError) as error:
            return None, Result(failure=" ".join(str(error).split()))

    def _results(self, problem, kernels, spread, patience, lost=math.inf):
        """Results of kernels, all in turn; `lost` as for `rounds`."""
        reference, rate = self._reference(problem)
        with pinned(reference[0], numba.get_num_threads()):
            found = rounds(kernels, reference, spread, patience, lost)
        shares = [statistics.median(ratios) * problem.flops for ratios in found]
        return [Result(problem.flops / (share * rate), share, relative_error(ratios))
                for share, ratios in zip(shares, found)]

    def _start(self, problem):
        """The start's result, on which all others depend."""
        return self._results(problem, [self._on(problem).start], self._spread / 2, 2 * self._patience)[0]

    def _beside_the_start(self, problem, schedule):
        start = self.measure(problem, problem.start)
        kernel, failed = self._built(problem, schedule)
        if failed:
            return failed
        old, new = self._results(problem, [self._on(problem).start, kernel], self._spread, self._patience / 2,
                                 LOST * self._least[problem] / start.seconds)
        return replace(new, seconds=start.seconds * new.seconds / old.seconds,
                       share=start.share * new.share / old.share)

    def _on(self, problem):
        """Operands of a problem; those of the last one are kept."""
        if self._bench is None or self._bench.problem != problem:
            self._bench = None  # before the next one's are made
            self._bench = Bench(problem)
        return self._bench

    def _reference(self, problem):
        """What is run in turn with the kernels, as (function, operations), and the peak, in operations a second."""
        key = problem.target, problem.dtype, numba.get_num_threads()
        if key not in self._references:
            run, operations = peak(numba.get_num_threads(), steps=REFERENCE_STEPS, dtype=problem.dtype)
            run()
            best = statistics.median(_timed(run) for _ in range(PEAK_ROUNDS))
            self._references[key] = (run, operations), operations / best
        return self._references[key]


def rounds(kernels, reference, spread, patience, lost=math.inf):
    """For each kernel the seconds that the reference takes for an operation by those of the kernel, in every round.

    Parameters
    ----------
    kernels : list of callable
        ``kernel(times)`` runs so many times.
    reference : (callable, int)
        And its operations.
    spread : float
        Rounds end when the relative standard errors of all medians are below, but not before there are `FEWEST`.
    patience : float
        Seconds for each kernel, after which they end as well; one kernel alone that takes as long is run once.
    lost : float
        They end after `LOST_ROUNDS` rounds in which the second of two kernels took so many times as long as the first.

    Returns
    -------
    list of list of float
    """
    run, operations = reference
    first = [_timed(kernel) for kernel in kernels]  # warms the caches, too
    if len(kernels) == 1 and first[0] > patience:
        return [[_timed(run) / operations / first[0]]]
    repeats = [_repeats(kernel, seconds) for kernel, seconds in zip(kernels, first)]
    ratios, end = [[] for _ in kernels], time.perf_counter() + patience * len(kernels)
    fewest = 1 if max(first) > patience else FEWEST
    while True:
        for kernel, times, found in zip(kernels, repeats, ratios):
            if len(kernels) > 1:
                kernel()  # the others drove its operands out
            seconds = _timed(kernel, times) / times
            found.append(_timed(run) / operations / seconds)
        done = len(ratios[0])
        if done >= min(fewest, LOST_ROUNDS) and len(kernels) == 2 and all(lost * b < a for a, b in zip(*ratios)):
            return ratios
        if done >= fewest and (done >= MOST or time.perf_counter() > end
                               or max(map(relative_error, ratios)) < spread):
            return ratios


def _repeats(kernel, seconds):
    """How often a kernel runs in about `SHORTEST`; starting threads takes longer than some kernels."""
    times = max(1, math.ceil(SHORTEST / seconds))
    while times > 1 and (took := _timed(kernel, times)) < SHORTEST / 2:
        times = math.ceil(times * min(SHORTEST / took, GROWTH))
    return times


def relative_error(values):
    """Standard error of the median over the median, from the median deviation as for a normal distribution."""
    middle = statistics.median(values)
    deviation = 1.4826 * statistics.median(abs(v - middle) for v in values)
    return 1.2533 * deviation / math.sqrt(len(values)) / middle


def _timed(call, *arguments):
    start = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - start


@contextlib.contextmanager
def _circumstances(problem):
    """The problem's target and number of threads."""
    before = numba.get_num_threads()
    with target.use_target(problem.target.name):
        numba.set_num_threads(problem.threads or before)
        try:
            yield
        finally:
            numba.set_num_threads(before)

"""Kernels tuned one after the other: searched for, the best measured again beside the default, the winner stored.

A schedule is stored in place of the default only if it is faster by more than the measurements' noise.  Where none is,
the default is stored, so that the kernel counts as tuned; one that no longer is the rule's is as good as it was.
"""
import math
import random
import time
from dataclasses import dataclass, replace

from znn.loops import Schedule
from znn.runtime import database
from znn.runtime.cache import generator
from znn.tuner.agent.policy import best
from znn.tuner.errors import TuningError, one_of
from znn.tuner.measuring import Measurer
from znn.tuner.searches import SEARCHES, Budget, run
from znn.tuner.settling import SEARCHING, finalists, settled

MODES = ("policy", "measured", "search")


@dataclass(frozen=True)
class Effort:
    """How to tune.

    Attributes
    ----------
    mode : str
        "policy": what the policy proposes first, unmeasured; "measured": what it proposes, measured; "search": another
        search.
    search : str
        Name in `SEARCHES`, for mode "search".
    seconds : float
        For each kernel.
    total_seconds : float
        For all, divided evenly over those that are left, as far as that is less.
    again : bool
        Replace what is stored, whatever it is.
    seed : int

    Raises
    ------
    TuningError
        If there is no such mode or search, or a number of seconds is not above zero.
    """

    mode: str = "measured"
    search: str = "annealing"
    seconds: float = 2.0
    total_seconds: float = math.inf
    again: bool = False
    seed: int = 0

    def __post_init__(self):
        one_of("mode", self.mode, MODES)
        if self.mode == "search":
            one_of("search", self.search, list(SEARCHES))
        for name in ("seconds", "total_seconds"):
            if not getattr(self, name) > 0:
                raise TuningError(f"{name}: expected a number above 0, found {getattr(self, name)!r}")

    @property
    def strategy(self):
        """Name in `SEARCHES` of what proposes schedules."""
        return self.search if self.mode == "search" else "policy"


@dataclass(frozen=True)
class Outcome:
    """What tuning a kernel came to.

    Attributes
    ----------
    name, which : str
        Of the workload, and its pass.
    contraction : str
        As the database has it.
    default, schedule : str
        The rule's, and what is used from now on.
    before, after : float or None
        Seconds of a run under each, measured in turn; None if nobody measured.
    share_before, share_after : float or None
        Of what the processor can do at best.
    step_before, step_after : float or None
        Seconds that the network's passes spend in it.
    measurements : int
    spent : float
        Seconds.
    source : str
        What found the schedule; "default" if it is the rule's.
    curve : list of (float, float)
        Seconds since the beginning, and the best time so far over the default's.
    """

    name: str
    which: str
    contraction: str
    default: str
    schedule: str
    before: float | None = None
    after: float | None = None
    share_before: float | None = None
    share_after: float | None = None
    step_before: float | None = None
    step_after: float | None = None
    measurements: int = 0
    spent: float = 0.0
    source: str = ""
    curve: list = ()


def kernels(workloads):
    """A workload for each entry that the database may have of them, those first that the passes spend most in.

    What differs in its epilogue alone shares an entry.
    """
    found = {}
    for w in workloads:
        key = w.problem.contraction, w.problem.dtype, w.problem.packed, w.problem.target
        found[key] = replace(found[key], times=found[key].times + w.times) if key in found else w
    return sorted(found.values(), key=lambda w: -w.of_passes(w.problem.flops))


def stored(problem):
    """The entry of the database for a problem, None where there is none; see `database.known`."""
    return database.known(problem.contraction, problem.dtype, problem.packed, problem.target)


def tuned(problem, measured=True):
    """Whether there is an entry for a problem; by default one that was measured with this version of the generator."""
    entry = stored(problem)
    return bool(entry) and (not measured or (entry.seconds < math.inf and entry.generator == generator()))


def tune(workloads, effort, stopped=lambda: False, measurer=None, clock=time.perf_counter):
    """Tune workloads and store what was found, each at once.

    Parameters
    ----------
    workloads : list of Workload
    effort : Effort
    stopped : callable
        Asked between measurements; once it is true, the kernel at hand is ended, and the others are left.
    measurer : Measurer, optional
    clock : callable

    Yields
    ------
    Outcome
        For each workload that something was stored for, or that the policy left as it is.

    Raises
    ------
    TuningError
        If a default schedule cannot be measured.
    OSError
        If the database cannot be read or written.
    """
    measurer, end = measurer or Measurer(), clock() + effort.total_seconds
    for number, workload in enumerate(workloads):
        seconds = min(effort.seconds, (end - clock()) / (len(workloads) - number))
        if seconds <= 0 or stopped():
            return
        if effort.mode == "policy":
            yield _proposed(workload, effort, clock)
        else:
            outcome = _measured(workload, effort, seconds, measurer, stopped, clock)
            if outcome:
                yield outcome


def _proposed(workload, effort, clock):
    """The policy's schedule, stored unmeasured where it is not the rule's."""
    began, problem = clock(), workload.problem
    schedule = best(problem)
    same = schedule == problem.start
    if not same:
        _store(problem, schedule, None, "policy", effort.again)
    return Outcome(**_about(workload, schedule), source="default" if same else "policy", spent=clock() - began)


def _measured(workload, effort, seconds, measurer, stopped, clock):
    """The best of a search, stored; None where it was stopped before it found anything."""
    problem, began, found = workload.problem, clock(), []
    rng = random.Random(f"{effort.seed} {problem.contraction}")
    for schedule, took in run(SEARCHES[effort.strategy], problem, measurer.measure,
                              Budget(seconds=SEARCHING * seconds), rng, clock):
        found.append((took, clock() - began, schedule))
        if stopped():
            break
    if stopped() and all(schedule == problem.start for _, _, schedule in found):
        return None
    competing = _known(problem)
    schedules = finalists(problem, [(schedule, took) for took, _, schedule in found], competing)
    results, winner = settled(measurer, problem, schedules, (1 - SEARCHING) * seconds)
    before, after, schedule = results[0], results[winner], schedules[winner]
    if before.failure:
        raise TuningError(f"{workload.name}: its default schedule cannot be measured: {before.failure}")
    source = "default" if winner == 0 else competing.get(schedule, effort.strategy)
    _store(problem, schedule, after.seconds, source, effort.again)
    return Outcome(**_about(workload, schedule), before=before.seconds, after=after.seconds, share_before=before.share,
                   share_after=after.share, step_before=workload.of_passes(before.seconds),
                   step_after=workload.of_passes(after.seconds), measurements=len(found), spent=clock() - began,
                   source=source, curve=_curve(found, problem.start, before.seconds))


def _known(problem):
    """The schedule that is stored, if it is possible, and where it is from."""
    entry = stored(problem)
    schedule = Schedule.parse(entry.schedule) if entry else None
    return {schedule: entry.source} if entry and problem.refusal(schedule) is None else {}


def _curve(found, default, measured):
    """Best so far by seconds, in parts of the default's time; where it becomes better.

    The default's time is that of the search, `measured` if it was not timed there.
    """
    curve, whole = [], next((took for took, _, schedule in found if schedule == default), measured)
    for took, at, _ in found:
        if took < math.inf and (not curve or took < curve[-1][1]):
            curve.append((at, took))
    return [(at, took / whole) for at, took in curve]


def _about(workload, schedule):
    problem = workload.problem
    return {"name": workload.name, "which": workload.which, "contraction": database.text(problem.contraction),
            "default": str(problem.start), "schedule": str(schedule)}


def _store(problem, schedule, seconds, source, replace):
    database.store(problem.contraction, schedule, seconds, source, problem.dtype, problem.packed, problem.target,
                   replace)

"""What is tuned: a contraction in the circumstances in which it runs, and which schedules of it are possible there."""
from dataclasses import dataclass
from functools import cached_property, lru_cache

import llvmlite.binding as llvm
import numba
import numpy as np

from znn.codegen.plan import PLAIN, Epilogue, Plan
from znn.codegen.target import Target
from znn.loops import Contraction, IllegalSchedule, Schedule
from znn.runtime.cache import generator
from znn.tuner.codesize import PLANS, instructions

MAX_LOOPS = 20             # of a schedule: what an observation has room for
MAX_INSTRUCTIONS = 10_000  # of a kernel: it compiles in about a second at most, 0.1 ms for each
MAX_COPIES = 32 << 20      # bytes of private outputs of a parallel sum


@dataclass(frozen=True)
class Problem:
    """A contraction, to be tuned.

    Attributes
    ----------
    contraction : Contraction
    start : Schedule
        From which searches set out; the default rule's.
    target : Target
    dtype : numpy.dtype
    epilogue : Epilogue
    packed : {None, "before", "inside"}
        As for `Plan`.
    task : str or None
        The dimension of which every index must be one task: the caller runs tasks by its index.
    calls : int
        Of how many calls, each with operands of its own, one run consists.
    threads : int or None
        On how many threads it runs, None for all: kernels within a task of something larger run on one.
    """

    contraction: Contraction
    start: Schedule
    target: Target
    dtype: np.dtype
    epilogue: Epilogue = PLAIN
    packed: str | None = None
    task: str | None = None
    calls: int = 1
    threads: int | None = None

    @property
    def key(self):
        """Text that says everything that a time depends on but the schedule."""
        return f"{self._text}; threads {self.threads or numba.get_num_threads()}"

    @cached_property
    def _text(self):
        c = self.contraction
        return "; ".join([*str(c).split("\n"), *([str(c.bias)] if c.bias else []), str(self.epilogue),
                          f"{self.dtype} packed {self.packed or 'no'}", f"calls {self.calls}", self.target.name,
                          llvm.get_host_cpu_name(), f"generator {generator()[:12]}"])

    @property
    def lanes(self):
        """Elements of a vector register."""
        return self.target.lanes(self.dtype)

    @property
    def flops(self):
        """Floating-point operations of a run."""
        return self.calls * self.contraction.flops

    def plan(self, schedule):
        """The plan of a schedule that is possible.

        Raises
        ------
        IllegalSchedule
            If it is not: it does not compute the contraction, `Plan` refuses it, it sums in private copies that the
            caller does not add up or that take too much memory, its tasks are not the caller's, it has too many loops,
            or it makes more than `MAX_INSTRUCTIONS`.
        """
        return _plan(self, schedule)

    def refusal(self, schedule):
        """Why a schedule is not possible; None where it is."""
        try:
            self.plan(schedule)
        except IllegalSchedule as error:
            return str(error)
        return None


@lru_cache(PLANS)
def _plan(problem, schedule):
    if len(schedule.loops) > MAX_LOOPS:
        raise IllegalSchedule(f"{len(schedule.loops)} loops, at most {MAX_LOOPS} are possible")
    plan = Plan(problem.contraction, schedule, problem.target, problem.dtype, problem.epilogue, problem.packed)
    _check_copies(problem, plan)
    if problem.task and not schedule.one_task_each(problem.task):
        raise IllegalSchedule(f"every {problem.task} must be one task: expected only {problem.task}:1 to be parallel")
    size = instructions(plan, problem.lanes)
    if size > MAX_INSTRUCTIONS:
        raise IllegalSchedule(f"about {size} instructions, at most {MAX_INSTRUCTIONS} are possible: unroll less")
    return plan


def _check_copies(problem, plan):
    if plan.copies == 1:
        return
    if problem.packed != "inside":  # only the kernels of the weights' gradient come with a caller who adds copies up
        raise IllegalSchedule("a sum is split over tasks, whose copies nobody adds up: mark no reduction parallel")
    size = plan.copies * elements(problem.contraction.out, problem.contraction.extents) * problem.dtype.itemsize
    if size > MAX_COPIES:
        raise IllegalSchedule(f"{plan.copies} copies of {problem.contraction.out.name} take {size} bytes, at most "
                              f"{MAX_COPIES} are possible: use fewer tasks for a sum")


def elements(access, extents):
    """Length of a flat array that holds every address of a tensor."""
    return 1 + access.start + sum(max(0, stride) * (extents[dim] - 1) for dim, stride in access.strides)

"""Kernels on a problem's operands: compiled for this occasion, checked against the start schedule's result, run."""
import math

import numpy as np

from znn.codegen import jit
from znn.codegen.nest import Nest
from znn.codegen.plan import BIAS, OUT, A, B
from znn.runtime import driver
from znn.runtime.kernel import short_lived
from znn.tuner.problem import elements

PAGE = 4096    # bytes: addresses so far apart share a set of the first cache
ROUNDING = 8   # times the dtype's resolution and the root of the summands, relative to the result's root mean square


class Incorrect(ArithmeticError):
    """A kernel computed something else than the start schedule's."""


class Bench:
    """Operands of a problem, normally distributed, and the kernels that compute on them; `start` is that of the start.

    Parameters
    ----------
    problem : Problem

    Raises
    ------
    IllegalSchedule
        If the start schedule is not possible.
    """

    def __init__(self, problem):
        rng, c = np.random.default_rng(0), problem.contraction
        self.problem = problem
        self.a, self.b = _normal(rng, problem, c.a, A), _normal(rng, problem, c.b, B)
        self.bias = _normal(rng, problem, c.bias, BIAS)[0] if problem.epilogue.bias else None
        self.start = self._built(problem.start)
        self.expected = self._result(self.start)
        summands = math.prod(d.extent for d in c.dims if d.reduction)
        self._tolerance = ROUNDING * np.finfo(problem.dtype).eps * math.sqrt(summands)

    def kernel(self, schedule):
        """The kernel of a schedule, ready to run, once it computed what the start schedule's does.

        Raises
        ------
        IllegalSchedule
            If the schedule is not possible.
        Incorrect
            If the kernel computed something else.
        RuntimeError
            From LLVM.
        """
        built = self._built(schedule)
        found, there = self._result(built), np.isfinite(self.expected)
        error = np.abs(found[there] - self.expected[there]).max()
        scale = math.sqrt(np.square(self.expected[there], dtype=np.float64).mean())
        if not error <= self._tolerance * scale or not np.array_equal(np.isfinite(found), there):
            raise Incorrect(f"{schedule}: differs by {error:g} where the root mean square is {scale:g}")
        return built

    def _built(self, schedule):
        return LoadedKernel(self.problem, schedule, self.a, self.b, self.bias)

    def _result(self, built):
        """Of one run from a fresh output; not a number where nothing is written."""
        built.out.fill(0 if self.problem.epilogue.accumulate else np.nan)
        return built().copy()


class LoadedKernel:
    """A kernel in memory, with an output of its own; the machine code goes when this object does.

    Parameters
    ----------
    problem : Problem
    schedule : Schedule
    a, b : ndarray, (calls, elements)
    bias : ndarray or None
    """

    def __init__(self, problem, schedule, a, b, bias):
        where, c = problem.target, problem.contraction
        problem.plan(schedule)
        with short_lived():
            nest = Nest(c, schedule, where, problem.dtype, problem.epilogue, problem.packed)
            plan, code = nest.plan, jit.object_code(nest.module, where)
            del nest
        self._engine = jit.load(code, where)
        if problem.packed == "before":
            b = _placed(np.stack([plan.packing.pack(one) for one in b]), B)
        self.out = _room((problem.calls, plan.copies, elements(c.out, c.extents)), problem.dtype, OUT)
        address = self._engine.get_function_address("kernel")
        self._inside = problem.threads == 1
        self._operands = a, b, bias  # the pieces hold their addresses
        self._pieces = [(address, out.ctypes.data, one.ctypes.data, other.ctypes.data,
                         0 if bias is None else bias.ctypes.data, plan.tasks)
                        for out, one, other in zip(self.out, a, b)]

    def __call__(self, times=1):
        """Run, on as many threads as numba is set to; the output, (calls, elements), copies added up.

        What is part of something larger runs `times` times in one launch, for no launch is part of its time.
        """
        launches = 1 if self._inside else times
        for _ in range(launches):
            driver.run(self._pieces * (times // launches))
            out = self.out[:, 0] if self.out.shape[1] == 1 else self.out.sum(1)
        return out


def _normal(rng, problem, access, tensor):
    """Operands for all calls, (calls, elements)."""
    shape = problem.calls, elements(access, problem.contraction.extents)
    return _placed(rng.standard_normal(shape, np.float32).astype(problem.dtype, copy=False), tensor)


def _placed(array, tensor):
    """A copy in a room of its own."""
    out = _room(array.shape, array.dtype, tensor)
    out[...] = array
    return out


def _room(shape, dtype, tensor):
    """An uninitialised array in a quarter of a page that depends on the tensor alone: where operands happen to lie to
    each other in the first cache makes a difference, which is not the schedules'."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + 2 * PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE + tensor * PAGE // 4
    return memory[start:start + size].view(dtype).reshape(shape)

"""Kernels on a problem's operands: compiled for this occasion, checked against the start schedule's result, run."""
import math

import numpy as np

from znn.codegen import jit
from znn.codegen.nest import Nest
from znn.runtime import arena, driver
from znn.runtime.kernel import short_lived
from znn.tuner.problem import elements

ROUNDING = 8  # times the dtype's resolution and the root of the summands, relative to the result's root mean square


class Incorrect(ArithmeticError):
    """A kernel computed something else than the start schedule's."""


class Bench:
    """Operands of a problem, normally distributed, and the kernels that compute on them.

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
        self.a, self.b = (_normal(rng, problem, access) for access in (c.a, c.b))
        self.bias = _normal(rng, problem, c.bias)[0] if problem.epilogue.bias else None
        self.expected = self._result(self._built(problem.start))
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
            b = _placed(np.stack([plan.packing.pack(one) for one in b]))
        self.out = arena.empty((problem.calls, plan.copies, elements(c.out, c.extents)), problem.dtype)
        address = self._engine.get_function_address("kernel")
        self._operands = a, b, bias  # the pieces hold their addresses
        self._pieces = [(address, out.ctypes.data, one.ctypes.data, other.ctypes.data,
                         0 if bias is None else bias.ctypes.data, plan.tasks)
                        for out, one, other in zip(self.out, a, b)]

    def __call__(self):
        """Run once, on as many threads as numba is set to; the output, (calls, elements), copies added up."""
        driver.run(self._pieces)
        return self.out[:, 0] if self.out.shape[1] == 1 else self.out.sum(1)


def _normal(rng, problem, access):
    """Operands for all calls, (calls, elements)."""
    shape = problem.calls, elements(access, problem.contraction.extents)
    return _placed(rng.standard_normal(shape, np.float32).astype(problem.dtype, copy=False))


def _placed(array):
    """A copy that starts on a cache line."""
    out = arena.empty(array.shape, array.dtype)
    out[...] = array
    return out

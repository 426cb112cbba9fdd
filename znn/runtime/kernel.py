"""A kernel ready to run: machine code, how many tasks it has, how its operand is packed."""
import contextlib
import functools
import gc
import threading

import numpy as np

from znn.codegen import jit, target
from znn.codegen.group import Group, element, sums_integers
from znn.codegen.nest import Nest
from znn.codegen.plan import PLAIN
from znn.runtime import arena, arrays, cache, driver
from znn.runtime.threads import survive_fork

_building = survive_fork(threading.RLock())


class Kernel:
    """Machine code of a contraction under a schedule.

    Attributes
    ----------
    address : int
        Of the machine code, for `driver.run`.
    tasks : int
        Independent pieces of work, any subset of which may run at the same time.
    copies : int
        Copies of the output that a parallel reduction writes.
    packing : Packing or None
        How operand b must be laid out by the caller.
    """

    def __init__(self, contraction, schedule, where, dtype, epilogue, packed):
        with short_lived():
            nest = Nest(contraction, schedule, where, dtype, epilogue, packed)
            plan = nest.plan
            self.tasks, self.copies = plan.tasks, plan.copies
            self.packing = plan.packing if packed == "before" else None
            self._what, c, of = f"the kernel of {contraction.name}", contraction, array_type(dtype)
            self._operands = [(access.name, _elements(access, c), of) for access in (c.out, c.a, c.b)]
            sums = np.dtype(np.float32) if isinstance(dtype, Group) else dtype
            if sums_integers(dtype) and not plan.scaled:
                sums = np.dtype(np.int32)
            self._operands[0] = (c.out.name, *_stored(self.copies * _elements(c.out, c), epilogue.stores, sums))
            if epilogue.bias:
                self._operands.append((c.bias.name, _elements(c.bias, c) * (1 + plan.scaled), sums))
            self.address = _compiled(lambda nest=nest: nest.module, where, contraction, schedule, epilogue, packed,
                                     dtype.str)
            del nest, plan

    def pack(self, b):
        """Operand b, contiguous, in the layout that the kernel reads.

        Raises
        ------
        ValueError
            If it is of another type, not contiguous, or too small.
        """
        self._check(b, *self._operands[2])
        packed = arena.empty(self.packing.source.shape, b.dtype)
        driver.gather(b.reshape(-1), self.packing.source, packed)
        return packed

    def piece(self, out, a, b, bias=None):
        """What `driver.run` runs: all tasks on numpy arrays, contiguous, that the contraction's addresses belong to.

        `b` must be packed already if the kernel says so; `bias` holds the factors of integer sums after the biases.

        Raises
        ------
        ValueError
            If an array is of another type, not contiguous, or too small, or a bias is missing.
        """
        of_out, of_a, (name, held, dtype), *of_bias = self._operands
        self._check(out, *of_out, written=True)
        self._check(a, *of_a)
        self._check(b, name, self.packing.source.size if self.packing else held, dtype)
        for of in of_bias:
            self._check(bias, *of)
        return (self.address, out.ctypes.data, a.ctypes.data, b.ctypes.data,
                0 if bias is None else bias.ctypes.data, self.tasks)

    def _check(self, array, name, size, dtype, written=False):
        arrays.check(self._what, name, array, dtype=dtype, written=written)
        if array.size < size:
            raise ValueError(f"{self._what} reaches {size} elements of {name}, found {array.size} {array.shape}: give "
                             "it the arrays that the contraction was made for")


def array_type(dtype):
    """numpy's type of arrays of such elements, a numpy dtype or a Group."""
    return dtype.array if isinstance(dtype, Group) else dtype


def _stored(size, group, sums):
    """Elements of an array of so many numbers, and their type."""
    return (size, sums) if group is None else (group.elements(size), group.array)


def _elements(access, contraction):
    """Length of the shortest flat array that has every address of a tensor, but for the points that do not count."""
    free, last = dict(access.strides), access.start
    for guard in contraction.guards:
        (first, _), *_ = guard.place.strides
        stride = free.get(first, 0)
        if all(free.get(dim, 0) == stride * s for dim, s in guard.place.strides):  # its address follows the place
            last += max(0, stride) * (guard.extent - 1)
            free = {dim: s for dim, s in free.items() if dim not in dict(guard.place.strides)}
    return 1 + last + sum(max(0, s) * (contraction.extents[dim] - 1) for dim, s in free.items())


def _compiled(module, where, *parts):
    """Address of the function that the IR `module()` defines, from the cache if `parts`, which say all, are there."""
    entry = cache.key(*parts, where, jit.processor(where))
    code = cache.load(entry)
    if code is None:
        code = jit.object_code(module(), where)
        cache.store(entry, code)
    return jit.link(code, where)


@contextlib.contextmanager
def short_lived():
    """What is made and dropped inside is freed at the end: a kernel's IR is megabytes of objects that form cycles.

    Kept from ageing, they are found by a collection of the youngest generation, which is cheap.  The collector is the
    whole process's, so one thread at a time.
    """
    with _building:
        enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            gc.collect(0)
            if enabled:
                gc.enable()


@functools.lru_cache(maxsize=4096)
def _address(build, where, *arguments):
    with short_lived():
        return _compiled(lambda: build(where, *arguments), where, build.__name__, *arguments)


def address(build, where, *arguments):
    """Address of the machine code of ``build(where, *arguments)``, an llvmlite module; compiled on first use, once.

    Parameters
    ----------
    build : callable
        A function of a module of `znn.codegen`.
    where : Target
    *arguments
        Hashable, and told apart by their repr.
    """
    with _building:
        return _address(build, where, *arguments)


@functools.lru_cache(maxsize=4096)
def _kernel(contraction, schedule, where, dtype, epilogue, packed):
    return Kernel(contraction, schedule, where, dtype, epilogue, packed)


def kernel(contraction, schedule, dtype, epilogue=PLAIN, packed=None):
    """The kernel for the current target, compiled on first use: once, whichever threads ask for it."""
    with _building:
        return _kernel(contraction, schedule, target.current(), element(dtype), epilogue, packed)

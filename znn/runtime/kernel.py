"""A kernel ready to run: machine code, how many tasks it has, how its operand is packed."""
import contextlib
import functools
import gc

import numpy as np

from znn.codegen import jit, target
from znn.codegen.nest import PLAIN, Nest
from znn.loops.layout import Packing
from znn.runtime import cache, driver


class Kernel:
    """Machine code of a contraction under a schedule.

    Attributes
    ----------
    tasks : int
        Independent pieces of work, any subset of which may run at the same time.
    copies : int
        Copies of the output that a parallel reduction writes.
    packing : Packing or None
        How operand b must be laid out.
    """

    def __init__(self, contraction, schedule, where, dtype, epilogue, packed):
        self.packing = Packing(contraction, schedule, contraction.b) if packed else None
        entry = cache.key(contraction, schedule, epilogue, packed, dtype.str, where, jit.processor(where))
        with _short_lived():
            nest = Nest(contraction, schedule, where, dtype, epilogue, self.packing)
            self.tasks, self.copies = nest.tasks, nest.copies
            code = cache.load(entry)
            if code is None:
                code = jit.object_code(nest.module, where)
                cache.store(entry, code)
            del nest
        self._address = jit.link(code, where)

    def __call__(self, out, a, b, bias=None):
        """Run all tasks on numpy arrays; the contraction's addresses count from their first elements.

        `b` must be packed already if the kernel says so.
        """
        driver.run(self._address, out.ctypes.data, a.ctypes.data, b.ctypes.data,
                   0 if bias is None else bias.ctypes.data, self.tasks)


@contextlib.contextmanager
def _short_lived():
    """What is made and dropped inside is freed at the end: a kernel's IR is megabytes of objects that form cycles.

    Kept from ageing, they are found by a collection of the youngest generation, which is cheap.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        if enabled:
            gc.enable()


@functools.lru_cache(maxsize=4096)
def _kernel(contraction, schedule, where, dtype, epilogue, packed):
    return Kernel(contraction, schedule, where, dtype, epilogue, packed)


def kernel(contraction, schedule, dtype, epilogue=PLAIN, packed=False):
    """The kernel for the current target, compiled on first use."""
    return _kernel(contraction, schedule, target.current(), np.dtype(dtype), epilogue, packed)

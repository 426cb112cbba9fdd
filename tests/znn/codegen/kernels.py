"""Running a generated kernel on flat arrays, without anything of the runtime."""
import ctypes

import numpy as np

from znn.codegen import jit
from znn.codegen.nest import Nest
from znn.codegen.plan import PLAIN

F64 = np.dtype(np.float64)


def size(access, c):
    """Elements of an array that holds every address of a tensor."""
    return 1 + access.start + sum(max(0, s) * (c.extents[d] - 1) for d, s in access.strides)


def addresses(access, c):
    """All addresses of a tensor, flat."""
    found = np.array([access.start])
    for d, s in access.strides:
        found = np.add.outer(found, s * np.arange(c.extents[d])).ravel()
    return found


def operands(c, seed):
    """Random a, b and out."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(size(x, c)) for x in (c.a, c.b, c.out)]


def generated(c, s, a, b, out, where, packed=None, epilogue=PLAIN, bias=None):
    """What the kernel makes of a copy of `out`, one task at a time; copies of a parallel sum added up."""
    nest = Nest(c, s, where, a.dtype, epilogue, packed)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_int64, ctypes.c_int64)(
        jit.link(jit.object_code(nest.module, where), where))
    if packed == "before":
        b = nest.plan.packing.pack(b)
    full = np.tile(out, (nest.plan.copies, 1))
    if nest.plan.copies > 1:  # each is to be written wholly
        full[:] = 0
        full[:, addresses(c.out, c)] = np.nan
    pointers = [x.ctypes.data for x in (full, a, b, np.zeros(1) if bias is None else bias)]
    for first in range(nest.plan.tasks):
        call(*pointers, first, first + 1)
    return full.sum(0)

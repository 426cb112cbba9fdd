"""The parallel loop around generated kernels: compiled by numba once, for all kernels, since addresses are data."""
import functools

import numba
import numpy as np
from llvmlite import ir
from numba import prange, types
from numba.core import cgutils
from numba.extending import intrinsic

from znn.runtime.threads import parallel

SHARE = 2  # a thread takes its fair share of what is left, divided by this


@intrinsic
def call(typing_context, address, arguments):
    """Call the machine code at `address` with a tuple of int64."""
    def codegen(context, builder, signature, args):
        i64 = ir.IntType(64)
        values = cgutils.unpack_tuple(builder, args[1], arguments.count)
        kernel = ir.FunctionType(ir.VoidType(), [i64] * arguments.count).as_pointer()
        builder.call(builder.inttoptr(args[0], kernel), values)
        return context.get_dummy_value()

    return types.void(types.int64, arguments), codegen


@intrinsic
def take(typing_context, counter):
    """Add one to the first element of an int64 array, atomically; what it was before."""
    def codegen(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.atomic_rmw("add", array.data, ir.IntType(64)(1), "monotonic")

    return types.int64(types.int64[::1]), codegen


@parallel("void(int64[:, ::1], int64[::1], int64[::1], int64)")
def _run(pieces, bounds, counter, threads):
    for _ in prange(threads):
        chunk = take(counter)
        while chunk < len(bounds) - 1:
            start, end = bounds[chunk], bounds[chunk + 1]
            for i in range(len(pieces)):
                tasks = pieces[i, 5]
                if start < tasks and end > 0:
                    call(pieces[i, 0], (pieces[i, 1], pieces[i, 2], pieces[i, 3], pieces[i, 4],
                                        max(start, 0), min(end, tasks)))
                start -= tasks
                end -= tasks
            chunk = take(counter)


@functools.lru_cache(4096)
def chunks(tasks, threads):
    """Where chunks of tasks begin, and where the last one ends; (chunks + 1,), int64.

    The first ones are large, so that a thread finds in its caches the rows that its next task shares, the last ones are
    single tasks, so that all threads end together (factoring: Hummel et al., CACM 35(8), 1992).
    """
    bounds = [0]
    while bounds[-1] < tasks:
        bounds.append(bounds[-1] + -(-(tasks - bounds[-1]) // (SHARE * threads)))
    return np.array(bounds, np.int64)


def run(pieces):
    """Run every task of the pieces, on as many threads as numba is set to.

    Threads take the next chunk of tasks when they are done with one, so that a slow core holds nobody up.  What a task
    does depends on its number alone: results are the same bit for bit whatever runs them.

    Parameters
    ----------
    pieces : list of (kernel, out, a, b, bias, tasks)
        Addresses of a kernel and of its operands, and how many tasks it has.
    """
    table = np.array(pieces, np.int64)
    threads = numba.get_num_threads()
    _run(table, chunks(int(table[:, 5].sum()), threads), np.zeros(1, np.int64), threads)


@parallel
def gather(array, source, out):
    """``out[i] = array[source[i]]``, zero where the source is -1; flat arrays of one length."""
    for i in prange(len(out)):
        out[i] = array[source[i]] if source[i] >= 0 else array.dtype.type(0)

"""The parallel loop around generated kernels: compiled by numba once, for all kernels, since addresses are data."""
import numba
import numpy as np
from llvmlite import ir
from numba import prange, types
from numba.core import cgutils
from numba.extending import intrinsic

from znn.runtime.threads import parallel

CHUNKS = 8  # that a thread takes of a launch on average: few enough to share rows in its caches, many enough to balance


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
def take(typing_context, counter, many):
    """Add `many` to the first element of an int64 array, atomically; what it was before."""
    def codegen(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.atomic_rmw("add", array.data, args[1], "monotonic")

    return types.int64(types.int64[::1], types.int64), codegen


@parallel("void(int64[:, ::1], int64[::1], int64, int64, int64)")
def _run(pieces, counter, total, chunk, threads):
    for _ in prange(threads):
        first = take(counter, chunk)
        while first < total:
            start, end = first, min(first + chunk, total)
            for i in range(len(pieces)):
                tasks = pieces[i, 5]
                if start < tasks and end > 0:
                    call(pieces[i, 0], (pieces[i, 1], pieces[i, 2], pieces[i, 3], pieces[i, 4],
                                        max(start, 0), min(end, tasks)))
                start -= tasks
                end -= tasks
            first = take(counter, chunk)


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
    total, threads = int(table[:, 5].sum()), numba.get_num_threads()
    _run(table, np.zeros(1, np.int64), total, max(1, total // (CHUNKS * threads)), threads)


@parallel
def gather(array, source, out):
    """``out[i] = array[source[i]]``, zero where the source is -1; flat arrays of one length."""
    for i in prange(len(out)):
        out[i] = array[source[i]] if source[i] >= 0 else array.dtype.type(0)

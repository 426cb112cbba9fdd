"""The parallel loop around generated kernels: compiled by numba once, for all kernels, since addresses are data."""
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic


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


@njit("void(int64, int64, int64, int64, int64, int64)", parallel=True, nogil=True, cache=True)
def run(kernel, out, a, b, bias, tasks):
    """Run tasks 0 .. tasks - 1 of the kernel at an address; the operands are addresses too.

    What a task does depends on its number alone, so results are the same bit for bit whatever runs them.
    """
    for task in prange(tasks):
        call(kernel, (out, a, b, bias, task, task + 1))

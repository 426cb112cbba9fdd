"""How passes over memory are cut into tasks, and walk their rows.

A task takes a strip of neighbouring rows of one plane.  Strips depend on the shape of the array alone, so what is
summed in which order does not depend on the threads; they are small enough to keep many threads busy when planes are
few, and long enough to hide what a task costs.

Rows are walked in whole vectors: the last one of a row may reach into the next, which comes after and is written again.
This is cheaper than single voxels, whose branches no processor predicts.

What is here becomes part of its callers, and numba's cache only looks at their files: after a change, touch them.
"""
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

VOXELS = 1 << 13  # of a strip, about: 32 KiB of float32
LANES = 16        # voxels that rows are rounded up to: the widest vector, in float32
AHEAD = 2         # rows from a voxel to the one that is prefetched meanwhile


def height(width):
    """Rows of a strip when each has `width` voxels."""
    return max(1, VOXELS // width)


@njit(inline="always")
def count(shape, height):
    """Strips of an array (n, c, z, y, x)."""
    return shape[0] * shape[1] * shape[2] * -(-shape[3] // height)


@njit(inline="always")
def place(number, shape, height):
    """Where strip `number` lies: volume, channel, section, its first row, and the row after its last."""
    strips = -(-shape[3] // height)
    plane, first = number // strips, number % strips * height
    volume, section = plane // (shape[1] * shape[2]), plane % shape[2]
    return volume, plane // shape[2] % shape[1], section, first, min(first + height, shape[3])


@njit(inline="always")
def whole_vectors(width, rows):
    """Voxels to walk in a row of `width` when it and those after it, `rows` together, belong to the task."""
    wide = -(-width // LANES) * LANES
    return wide if wide <= rows * width else width


@intrinsic
def prefetch(typing_context, array, index):
    """Ask the caches for the line of element `index` of a flat array, which need not exist.

    Processors foresee which line a loop needs next, but not where lanes of a load are masked, as those of
    ``a[k] if b[k] else 0``.
    """
    def codegen(context, builder, signature, args):
        i32, data = ir.IntType(32), context.make_array(signature.args[0])(context, builder, args[0]).data
        line = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [line.type, i32, i32, i32])
        hint = builder.module.declare_intrinsic("llvm.prefetch", [line.type], kind)
        builder.call(hint, [line, i32(0), i32(3), i32(1)])  # for reading, into every cache, data
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


@njit(inline="always")
def prefetch_row(array, start, width):
    """`prefetch` a row that begins at `start`."""
    for k in range(start, start + width, LANES):
        prefetch(array, k)

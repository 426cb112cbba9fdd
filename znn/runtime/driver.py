"""The parallel loops around generated kernels: compiled by numba once, for all kernels, since addresses are data.

Every kernel takes 64-bit integers only (pointers as addresses), so one `call` serves all of them.  Strides are in
elements, addresses in bytes.  How the work is cut depends on the sizes alone and never on the number of threads,
so results are the same bit for bit whatever runs them.
"""
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


@njit(parallel=True, nogil=True, cache=True)
def run_spatial(kernels, size, x, x_strides, w, bias, offsets, n_offsets, y, y_strides, extent, tile, edge, taps):
    """Sweep a `spatial_tile` over an output: rows in parallel, along a row tile by tile, all channels of a tile.

    Parameters
    ----------
    kernels : (2, 2) int64
        Addresses, [full or last channel block][full or last tile of a row].
    size : int
        Bytes of an element.
    x, w, bias, offsets, y : int
        Addresses; `w` packed block after block, `taps` weights for each output channel.
    x_strides, y_strides : (4,) int64
        Of (n, channel, z, y).
    extent : (6,) int64
        (n, output channels, z, y, x) of the output, and input channels.
    tile : (2,) int64
        Channels and voxels of the full tile.
    edge : (2,) int64
        Start of a row's last, narrower tile (negative: there is none) and the voxels that exist of it.
    """
    n, co, zo, yo, xo, ci = extent
    channels, width = tile
    for row in prange(n * zo * yo):
        i, z, r = row // (zo * yo), row // yo % zo, row % yo
        x_row = x + size * (i * x_strides[0] + z * x_strides[2] + r * x_strides[3])
        y_row = y + size * (i * y_strides[0] + z * y_strides[2] + r * y_strides[3])
        n_full = xo // width
        for t in range(n_full + (edge[0] >= 0)):
            is_edge = t == n_full
            x0 = edge[0] if is_edge else t * width
            for c in range(0, co, channels):
                call(kernels[1 if c + channels > co else 0, 1 if is_edge else 0],
                     (x_row + size * x0, w + size * c * taps, y_row + size * (c * y_strides[1] + x0),
                      bias + size * c, ci, x_strides[1], n_offsets, offsets, y_strides[1], edge[1]))


@njit(parallel=True, nogil=True, cache=True)
def run_weights(kernels, size, x, x_strides, g, g_strides, dw, offsets, extent, tile, strip, n_slabs):
    """Sum a `weight_tile` over all voxels; slabs of rows and blocks of output channels in parallel.

    Parameters
    ----------
    kernels : (2, 2) int64
        Addresses, [full or last channel block][full or last block of taps].
    x, g, dw, offsets : int
        Addresses; `dw` is (slabs, output channels, taps), zero at the start; an offset for each tap.
    x_strides, g_strides : (4,) int64
        Of (n, channel, z, y).
    extent : (6,) int64
        (n, output channels, z, y, x) of the gradient, and taps (input channels times kernel volume).
    tile : (2,) int64
        Output channels and taps of the full tile.
    strip : int
        Rows that one call sums over: few enough that their gradient stays in cache.
    n_slabs : int
        Each slab of strips has its own copy of dw, to be summed by the caller.
    """
    n, co, zo, yo, xo, taps = extent
    channels, width = tile
    strips = (yo + strip - 1) // strip
    blocks = (co + channels - 1) // channels
    for task in prange(n_slabs * blocks):
        slab, c = task // blocks, task % blocks * channels
        for s in range(slab * n * zo * strips // n_slabs, (slab + 1) * n * zo * strips // n_slabs):
            i, z, r = s // (zo * strips), s // strips % zo, s % strips * strip
            x_at = x + size * (i * x_strides[0] + z * x_strides[2] + r * x_strides[3])
            g_at = g + size * (i * g_strides[0] + c * g_strides[1] + z * g_strides[2] + r * g_strides[3])
            for t in range(0, taps, width):
                call(kernels[1 if c + channels > co else 0, 1 if t + width > taps else 0],
                     (x_at, g_at, dw + size * ((slab * co + c) * taps + t), offsets + 8 * t, min(strip, yo - r),
                      x_strides[3], g_strides[3], g_strides[1], xo, taps))

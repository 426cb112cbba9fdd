"""The three passes of a valid, dilated 3D convolution on numpy arrays, by generated kernels.

Arrays are (n, channels, z, y, x), contiguous, float32 or float64; weights (out, in, kz, ky, kx).
"""
import functools
import math
import threading

import numpy as np

from znn.codegen import conv as tiles
from znn.codegen import jit, target
from znn.runtime import driver, pointwise

STRIP_BYTES = 128 << 10  # gradient rows that weight_tile re-reads: they stay in a second-level cache
TASKS = 64              # enough parallel pieces of a weight gradient for a large machine

_scratch = threading.local()


@functools.cache
def _kernel(emit, where, dtype, *args):
    return jit.compile_kernel(emit(where, dtype, *args), where)


def forward(x, w, bias=None, dilation=(1, 1, 1), relu=False):
    """``y[n, co, p] = bias[co] + sum_{ci, k} w[co, ci, k] x[n, ci, p + dilation k]``, then max(y, 0) if `relu`.

    Returns
    -------
    y : ndarray, (n, out, z - dilation_z (kz - 1), ...)
    """
    extent = [n - d * (k - 1) for n, d, k in zip(x.shape[2:], dilation, w.shape[2:])]
    y = np.empty((x.shape[0], w.shape[0], *extent), x.dtype)
    _spatial(x, x.strides, 0, w, bias, dilation, relu, y)
    return y


def backward(x, w, y, grad, dilation=(1, 1, 1), activation=None, needs=(True, True, True)):
    """Gradients of `forward` (followed by `activation`) for x, w and bias.

    Parameters
    ----------
    x, w : ndarray
        As given to `forward`.
    y : ndarray or None
        What the activation returned; only read when there is one.
    grad : ndarray
        Gradient of the loss for y.
    activation : None, "relu", or (a, b) for y = a tanh(b s)
    needs : (bool, bool, bool)
        Which of the three to compute.

    Returns
    -------
    dx, dw, db : ndarray or None
    """
    pad = [d * (k - 1) if needs[0] else 0 for d, k in zip(dilation, w.shape[2:])]
    line = 64 // x.itemsize
    left = -(-pad[2] // line) * line
    n, co, zo, yo, xo = grad.shape
    pitch = -(-(left + xo + pad[2]) // line) * line
    g = _workspace((n, co, zo + 2 * pad[0], yo + 2 * pad[1], pitch), x.dtype)
    db = pointwise.gradient(g, grad, y if activation else grad, activation, pad[0], pad[1], left)
    dx = dw = None
    if needs[0]:
        dx = np.empty_like(x)
        flipped = w[:, :, ::-1, ::-1, ::-1].swapaxes(0, 1)
        _spatial(g, g.strides, left - pad[2], flipped, None, dilation, False, dx)
    if needs[1]:
        inner = (pad[0] * g.strides[2] + pad[1] * g.strides[3]) // g.itemsize + left
        dw = _weights(x, g, inner, grad.shape, w.shape, dilation)
    return dx, dw, db if needs[2] else None


def _spatial(x, strides, start, w, bias, dilation, relu, y):
    """y = the convolution of x, whose first voxel is `start` elements into its memory."""
    where, size = target.current(), x.itemsize
    lanes = where.lanes(x.dtype)
    co, ci, kz, ky, kx = w.shape
    xo = y.shape[4]
    nc, nx = _spatial_shape(where, lanes, co, xo)
    rest = xo % (nx * lanes)
    edge_nx = -(-rest // lanes)
    masked = edge_nx * lanes > xo

    def kernel(channels, vectors, masked):
        return _kernel(tiles.spatial_tile, where, x.dtype, channels, vectors, kx, dilation[2], relu, masked)

    table = np.zeros((2, 2), np.int64)
    for i, channels in enumerate((nc, co % nc)):
        if 0 < channels <= co:
            table[i, 0] = kernel(channels, nx, False) if xo >= nx * lanes else 0
            table[i, 1] = kernel(channels, edge_nx, masked) if rest else 0
    s = np.array(strides, np.int64) // size
    offsets = np.array([a * dilation[0] * s[2] + b * dilation[1] * s[3] for a in range(kz) for b in range(ky)])
    packed = _pack(w, nc)
    shift = np.zeros(co, x.dtype) if bias is None else np.ascontiguousarray(bias)
    edge = (max(xo - edge_nx * lanes, 0) if rest else -1, xo if masked else 0)
    driver.run_spatial(table, size, x.ctypes.data + size * start, s[:4], packed.ctypes.data, shift.ctypes.data,
                       offsets.ctypes.data, offsets.size, y.ctypes.data, np.array(y.strides[:4]) // size,
                       np.array([*y.shape, ci]), np.array([nc, nx * lanes]), np.array(edge), ci * kz * ky * kx)


def _weights(x, g, start, extent, shape, dilation):
    """dw of the given shape; g's first voxel is `start` elements into its memory and covers `extent`."""
    where, size = target.current(), x.itemsize
    n, co, zo, yo, xo = extent
    taps = math.prod(shape[1:])
    nc, nt = _weight_shape(where, co, taps)
    table = np.zeros((2, 2), np.int64)
    for i, channels in enumerate((nc, co % nc)):
        for j, width in enumerate((nt, taps % nt)):
            if channels and width:
                table[i, j] = _kernel(tiles.weight_tile, where, x.dtype, channels, width)
    s = np.array(x.strides, np.int64) // size
    steps = [s[1]] + [d * stride for d, stride in zip(dilation, s[2:])]
    offsets = sum(np.arange(k).reshape([-1 if a == b else 1 for b in range(4)]) * step
                  for a, (k, step) in enumerate(zip(shape[1:], steps)))
    offsets = np.ascontiguousarray(offsets, np.int64)
    strip = max(1, min(yo, STRIP_BYTES // (nc * xo * size)))
    slabs = min(n * zo * -(-yo // strip), -(-TASKS // -(-co // nc)))
    dw = np.zeros((slabs, co, taps), x.dtype)
    driver.run_weights(table, size, x.ctypes.data, s[:4], g.ctypes.data + size * start,
                       np.array(g.strides[:4]) // size, dw.ctypes.data, offsets.ctypes.data,
                       np.array([n, co, zo, yo, xo, taps]), np.array([nc, nt]), strip, slabs)
    return dw.sum(0).reshape(shape)


def _pack(w, nc):
    """Weights in the order in which `spatial_tile` reads them: (block, ci, kz, ky, kx, channel of the block)."""
    full = len(w) // nc * nc
    head = w[:full].reshape(-1, nc, *w.shape[1:]).transpose(0, 2, 3, 4, 5, 1)
    return np.concatenate([head.ravel(), w[full:].transpose(1, 2, 3, 4, 0).ravel()])


def _spatial_shape(where, lanes, co, xo):
    """(channels, vectors) of the tile with the least estimated time for a row of xo voxels.

    A multiply costs one slot for each accumulator; each step also loads nx vectors and broadcasts nc weights, two a
    slot.  The accumulators, nx vectors and one broadcast must fit the registers.
    """
    def cost(shape):
        nc, nx = shape
        vectors = -(-xo // lanes)
        steps = sum(count * max(c * v, (c + 2 * v) / 2) + count * (0.2 * c + 0.5 * v)
                    for c, c_count in ((nc, co // nc), (co % nc, 1))
                    for v, v_count in ((nx, vectors // nx), (vectors % nx, 1))
                    if (count := c_count * v_count) and c and v)
        return steps, -nx

    legal = [(nc, nx) for nx in (1, 2, 3, 4) for nc in range(1, co + 1)
             if nc * nx + nx + 1 <= where.registers and nx <= -(-xo // lanes)]
    return min(legal, key=cost)


def _weight_shape(where, co, taps):
    """(output channels, taps) of the weight tile: fewest loads for the products that fit the registers."""
    legal = [(nc, nt) for nc in range(1, min(co, 12) + 1) for nt in range(1, min(taps, 8) + 1)
             if nc * nt + nt + 1 <= where.registers]

    def cost(shape):
        nc, nt = shape
        return -(-co // nc) * -(-taps // nt) * (nc * nt + 0.4 * (nc + 2 * nt))

    return min(legal, key=cost)


def _workspace(shape, dtype):
    """Memory of this thread that is used again by the next call; its contents are arbitrary."""
    size = math.prod(shape) * dtype.itemsize
    held = getattr(_scratch, "held", None)
    if held is None or held.nbytes < size + 64:
        held = _scratch.held = np.empty(size + 64, np.uint8)
    start = -held.ctypes.data % 64
    return held[start:start + size].view(dtype).reshape(shape)

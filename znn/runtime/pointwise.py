"""Passes over memory that the convolution needs beside its kernels."""
import numpy as np
from numba import njit, prange

from znn.runtime import strips

NONE, RELU, TANH = 0, 1, 2


def gradient(out, grad, y, activation, left):
    """Write grad times the activation's derivative into `out`, zeros beside it; return its sums by channel.

    Parameters
    ----------
    out : ndarray, (n, c, z, rows, pitch)
        Each row's gradient starts at `left`; the rest of the row becomes zero, rows beyond those of `grad` stay as
        they are.  `pitch` and `left` are multiples of a cache line.
    grad, y : ndarray, (n, c, z, y, x)
        Gradient for the activation's output, and that output.
    activation : None, "relu", or (a, b) for y = a tanh(b s), whose derivative is b (a - y^2 / a)

    Returns
    -------
    ndarray, (c,)
        Gradient for the bias, the same whatever the number of threads.
    """
    kind = NONE if activation is None else RELU if activation == "relu" else TANH
    a, b = activation if kind == TANH else (1.0, 1.0)
    height = strips.height(grad.shape[4])
    sums = np.empty((*grad.shape[:3], -(-grad.shape[3] // height)))
    _gradient(out.ravel(), out.shape, grad.ravel(), y.ravel(), grad.shape, kind, grad.dtype.type(a), grad.dtype.type(b),
              left, height, sums.ravel())
    return sums.sum((0, 2, 3)).astype(grad.dtype)


# Below, arrays are flat and rows are where they begin, as in `pool`.

@njit(parallel=True, nogil=True, cache=True)
def _gradient(out, out_shape, grad, y, shape, kind, a, b, left, height, sums):
    for task in prange(strips.count(shape, height)):
        i, c, z, first, end = strips.place(task, shape, height)
        plane = (i * shape[1] + c) * shape[2] + z
        total = 0.0
        for r in range(first, end):
            strips.prefetch_row(grad, (plane * shape[3] + r + strips.AHEAD) * shape[4], shape[4])
            total += _row(out, (plane * out_shape[3] + r) * out_shape[4], out_shape[4], left,
                          grad, y, (plane * shape[3] + r) * shape[4], shape[4], kind, a, b)
        sums[task] = total


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _row(out, to, pitch, left, grad, y, start, width, kind, a, b):
    """One row into `out`; its sum."""
    start, to = np.uint64(start), np.uint64(to)
    zero, first, end = grad.dtype.type(0), to + np.uint64(left), to + np.uint64(pitch)
    wide = -(-width // strips.LANES) * strips.LANES
    wide = np.uint64(wide if start + np.uint64(wide) <= np.uint64(grad.size) and left + wide <= pitch else width)
    for k in range(to, first):
        out[k] = zero
    if kind == RELU:
        for k in range(wide):
            out[first + k] = grad[start + k] if y[start + k] > zero else zero
    elif kind == TANH:
        for k in range(wide):
            s = y[start + k]
            out[first + k] = grad[start + k] * b * (a - s * s / a)
    else:
        for k in range(wide):
            out[first + k] = grad[start + k]
    for k in range(first + np.uint64(width), end):
        out[k] = zero
    total = zero
    for k in range(wide):
        total += out[first + k]
    return total

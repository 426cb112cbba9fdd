"""Passes over memory that the convolution needs beside its kernels."""
import numpy as np
from numba import njit, prange

from znn.runtime import arena, arrays, strips
from znn.runtime.threads import parallel

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

    Raises
    ------
    ValueError
        If an argument is not as above.
    """
    _check(out, grad, y, activation, left)
    kind = NONE if activation is None else RELU if activation == "relu" else TANH
    a, b = activation if kind == TANH else (1.0, 1.0)
    height = strips.height(grad.shape[4])
    sums = np.empty((*grad.shape[:3], -(-grad.shape[3] // height)))
    _gradient(out.ravel(), out.shape, grad.ravel(), y.ravel(), grad.shape, kind, grad.dtype.type(a), grad.dtype.type(b),
              left, height, sums.ravel())
    return sums.sum((0, 2, 3)).astype(grad.dtype)


def _check(out, grad, y, activation, left):
    what = "the gradient of an activation"
    arrays.check(what, "grad", grad)
    arrays.check_volumes(what, "grad", grad.shape)
    arrays.check(what, "y", y, grad.shape, grad.dtype)
    arrays.check_activation(activation)
    arrays.check(what, "out", out, dtype=grad.dtype, written=True)
    n, line = grad.shape, arena.LINE // grad.dtype.itemsize
    if (len(out.shape) != 5 or out.shape[:3] != n[:3] or out.shape[3] < n[3] or out.shape[4] < left + n[4]
            or left < 0 or left % line or out.shape[4] % line):
        raise ValueError(f"{what} expects out with at least {(*n[:4], left + n[4])} voxels, its rows and where they "
                         f"begin multiples of {line}, found {out.shape} and {left}: make both by conv.padded_shape")


# Below, arrays are flat and rows are where they begin, as in `pool`.

@parallel
def _gradient(out, out_shape, grad, y, shape, kind, a, b, left, height, sums):
    width, pitch = shape[4], out_shape[4]
    for task in prange(strips.count(shape, height)):
        i, c, z, first, end = strips.place(task, shape, height)
        plane = (i * shape[1] + c) * shape[2] + z
        start = plane * out_shape[3] * pitch
        for r in range(first, end):
            row = (plane * shape[3] + r) * width
            strips.prefetch_row(grad, row + strips.AHEAD * width, width)
            wide = strips.whole_vectors(width, end - r)
            _row(out, start + r * pitch, pitch, left, grad, y, row, width, wide, kind, a, b)
        sums[task] = _sum(out, start + first * pitch, start + end * pitch)


@njit(nogil=True, cache=True)
def _row(out, to, pitch, left, grad, y, start, width, wide, kind, a, b):
    """One row into `out`: `wide` voxels, of which those beyond `width` become zero again."""
    to, start, wide = np.uint64(to), np.uint64(start), np.uint64(wide)
    zero, first = out.dtype.type(0), to + np.uint64(left)
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
    for k in range(first + np.uint64(width), to + np.uint64(pitch)):
        out[k] = zero


@njit(nogil=True, cache=True, fastmath={"reassoc"})
def _sum(array, first, end):
    total = 0.0  # in double precision: what cancels leaves no rounding error of the size of its parts
    for k in range(np.uint64(first), np.uint64(end)):
        total += array[k]
    return total

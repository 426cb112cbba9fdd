"""The three passes of a valid, dilated 3D convolution on numpy arrays.

Arrays are (n, channels, z, y, x), contiguous, float32 or float64; weights (out, in, kz, ky, kx).
"""
import functools
import itertools
import math
import threading

import numpy as np

from znn.codegen import target
from znn.codegen.nest import Epilogue
from znn.loops.contraction import conv_backward_data, conv_backward_weights, conv_forward, row_major
from znn.runtime import default, pointwise
from znn.runtime.kernel import kernel

_scratch = threading.local()


def forward(x, w, bias=None, dilation=(1, 1, 1), relu=False):
    """``y[n, co, p] = bias[co] + sum_{ci, k} w[co, ci, k] x[n, ci, p + dilation k]``, then max(y, 0) if `relu`.

    Returns
    -------
    y : ndarray, (n, out, z - dilation_z (kz - 1), ...)
    """
    extent = tuple(s - d * (k - 1) for s, d, k in zip(x.shape[2:], dilation, w.shape[2:]))
    epilogue = Epilogue(bias=bias is not None, activation="relu" if relu else None)
    run = _forward(x.shape, w.shape, extent, tuple(dilation), x.dtype, epilogue, target.current())
    y = np.empty((x.shape[0], w.shape[0], *extent), x.dtype)
    run(y, x, run.packing.pack(w), bias)
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
    dilation = tuple(dilation)
    reach = dilation[2] * (w.shape[4] - 1) if needs[0] else 0
    line = 64 // x.itemsize
    left = -(-reach // line) * line
    shape = (*grad.shape[:4], -(-(left + grad.shape[4] + reach) // line) * line)
    g = _workspace(shape, x.dtype)
    db = pointwise.gradient(g, grad, y if activation else grad, activation, left)
    where, dx, dw = target.current(), None, None
    if needs[0]:
        dx = np.empty_like(x)
        for part in _data_parts(x.shape, w.shape, grad.shape, dilation, row_major(shape), left, x.dtype, where):
            part(dx, g, w)
    if needs[1]:
        run = _weights(x.shape, w.shape, grad.shape, dilation, row_major(shape), left, x.dtype, where)
        dw = np.zeros((run.copies, *w.shape), x.dtype)
        run(dw, x, g)
        dw = dw.sum(0)
    return dx, dw, db if needs[2] else None


@functools.lru_cache(maxsize=4096)
def _forward(x_shape, w_shape, extent, dilation, dtype, epilogue, where):
    c = conv_forward(*x_shape[:2], w_shape[0], w_shape[2:], extent, dilation)
    schedule = default.spatial(c, where.lanes(dtype), where.registers, dtype.itemsize)
    return kernel(c, schedule, dtype, epilogue, packed=True)


@functools.lru_cache(maxsize=4096)
def _weights(x_shape, w_shape, g_shape, dilation, g_strides, g_start, dtype, where):
    c = conv_backward_weights(*x_shape[:2], w_shape[0], w_shape[2:], g_shape[2:], dilation, None, g_strides, g_start)
    return kernel(c, default.weights(c, where.lanes(dtype), where.registers, dtype.itemsize), dtype)


@functools.lru_cache(maxsize=4096)
def _data_parts(x_shape, w_shape, g_shape, dilation, g_strides, g_start, dtype, where):
    """Backward-data, cut in z and y where the taps that meet the gradient change: what is zero is not multiplied.

    Returns
    -------
    list of functions of (dx, g, w)
    """
    parts, xs = [], row_major(x_shape)
    cuts = [_segments(*a) for a in zip(x_shape[2:4], w_shape[2:4], g_shape[2:4], dilation[:2])]
    for (z0, z1, kz0, kz1), (y0, y1, ky0, ky1) in itertools.product(*cuts):
        voxels, taps = np.s_[:, :, z0:z1, y0:y1], np.s_[:, :, kz0:kz1, ky0:ky1]
        if kz0 >= kz1 or ky0 >= ky1:
            parts.append(lambda dx, g, w, voxels=voxels: dx[voxels].fill(0))
            continue
        start = g_start + (z0 - dilation[0] * kz0) * g_strides[2] + (y0 - dilation[1] * ky0) * g_strides[3]
        c = conv_backward_data(x_shape[0], x_shape[1], w_shape[0], (kz1 - kz0, ky1 - ky0, w_shape[4]),
                               (z1 - z0, y1 - y0, x_shape[4]), dilation, g_strides, xs, start, z0 * xs[2] + y0 * xs[3])
        run = kernel(c, default.spatial(c, where.lanes(dtype), where.registers, dtype.itemsize), dtype, packed=True)
        parts.append(lambda dx, g, w, run=run, taps=taps: run(dx, g, run.packing.pack(w[taps])))
    return parts


def _segments(extent, taps, extent_g, dilation):
    """Parts (first, end, first tap, end tap) of an axis of x, within each of which the same taps meet the gradient."""
    starts = (e for k in range(taps) for e in (dilation * k, extent_g + dilation * k))
    edges = sorted({0, extent, *(e for e in starts if e < extent)})
    return [(a, b, max(0, -((extent_g - 1 - a) // dilation)), min(taps, a // dilation + 1))
            for a, b in itertools.pairwise(edges)]


def _workspace(shape, dtype):
    """Memory of this thread that is used again by the next call; its contents are arbitrary."""
    size = math.prod(shape) * dtype.itemsize
    held = getattr(_scratch, "held", None)
    if held is None or held.nbytes < size + 64:
        held = _scratch.held = np.empty(size + 64, np.uint8)
    start = -held.ctypes.data % 64
    return held[start:start + size].view(dtype).reshape(shape)

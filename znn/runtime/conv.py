"""The three passes of a valid, dilated 3D convolution on numpy arrays.

Arrays are (n, channels, z, y, x), contiguous, float32 or float64; weights (out, in, kz, ky, kx).
"""
import functools
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
    n, ci = x.shape[:2]
    extent = tuple(s - d * (k - 1) for s, d, k in zip(x.shape[2:], dilation, w.shape[2:]))
    run = _spatial(conv_forward, n, ci, w.shape[0], w.shape[2:], extent, tuple(dilation), (), x.dtype,
                   Epilogue(bias=bias is not None, activation="relu" if relu else None), target.current())
    y = np.empty((n, w.shape[0], *extent), x.dtype)
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
    kernel_zyx, dilation = w.shape[2:], tuple(dilation)
    pad = [d * (k - 1) if needs[0] else 0 for d, k in zip(dilation, kernel_zyx)]
    line = 64 // x.itemsize
    left = -(-pad[2] // line) * line
    n, co, zo, yo, xo = grad.shape
    shape = (n, co, zo + 2 * pad[0], yo + 2 * pad[1], -(-(left + xo + pad[2]) // line) * line)
    g, strides = _workspace(shape, x.dtype), row_major(shape)
    db = pointwise.gradient(g, grad, y if activation else grad, activation, pad[0], pad[1], left)
    dx = dw = None
    if needs[0]:
        run = _spatial(conv_backward_data, n, x.shape[1], co, kernel_zyx, x.shape[2:], dilation,
                       (strides, None, left - pad[2]), x.dtype, Epilogue(), target.current())
        dx = np.empty_like(x)
        run(dx, g, run.packing.pack(w))
    if needs[1]:
        start = pad[0] * strides[2] + pad[1] * strides[3] + left
        run = _weights(n, x.shape[1], co, kernel_zyx, (zo, yo, xo), dilation, strides, start, x.dtype, target.current())
        dw = np.zeros((run.copies, *w.shape), x.dtype)
        run(dw, x, g)
        dw = dw.sum(0)
    return dx, dw, db if needs[2] else None


@functools.lru_cache(maxsize=4096)
def _spatial(contraction, n, ci, co, kernel_zyx, extent, dilation, layout, dtype, epilogue, where):
    c = contraction(n, ci, co, kernel_zyx, extent, dilation, *layout)
    return kernel(c, default.spatial(c, where.lanes(dtype), where.registers, dtype.itemsize), dtype, epilogue,
                  packed=True)


@functools.lru_cache(maxsize=4096)
def _weights(n, ci, co, kernel_zyx, extent, dilation, g_strides, g_start, dtype, where):
    c = conv_backward_weights(n, ci, co, kernel_zyx, extent, dilation, None, g_strides, g_start)
    return kernel(c, default.weights(c, where.lanes(dtype), where.registers, dtype.itemsize), dtype)


def _workspace(shape, dtype):
    """Memory of this thread that is used again by the next call; its contents are arbitrary."""
    size = math.prod(shape) * dtype.itemsize
    held = getattr(_scratch, "held", None)
    if held is None or held.nbytes < size + 64:
        held = _scratch.held = np.empty(size + 64, np.uint8)
    start = -held.ctypes.data % 64
    return held[start:start + size].view(dtype).reshape(shape)

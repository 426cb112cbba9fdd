"""Passes over memory that the convolution needs beside its kernels."""
import numpy as np
from numba import prange

from znn.runtime.threads import parallel

NONE, RELU, TANH = 0, 1, 2


def gradient(out, grad, y, activation, left):
    """Write grad times the activation's derivative into `out`, zeros beside it; return its sums by channel.

    Parameters
    ----------
    out : ndarray, (n, c, z, y, pitch)
        Each row's gradient starts at `left`; the rest of the row becomes zero.
    grad, y : ndarray, (n, c, z, y, x)
        Gradient for the activation's output, and that output.
    activation : None, "relu", or (a, b) for y = a tanh(b s), whose derivative is b (a - y^2 / a)

    Returns
    -------
    ndarray, (c,)
        Gradient for the bias.
    """
    kind = NONE if activation is None else RELU if activation == "relu" else TANH
    a, b = activation if kind == TANH else (1.0, 1.0)
    sums = np.empty(grad.shape[:3])
    _gradient(out, grad, y, kind, grad.dtype.type(a), grad.dtype.type(b), left, sums)
    return sums.sum((0, 2)).astype(grad.dtype)


@parallel(fastmath={"reassoc", "contract"})
def _gradient(out, grad, y, kind, a, b, left, sums):
    n, channels, depth, rows, width = grad.shape
    for task in prange(n * channels * depth):
        i, c, z = task // (channels * depth), task // depth % channels, task % depth
        total = 0.0
        for r in range(rows):
            to, g, s = out[i, c, z, r], grad[i, c, z, r], y[i, c, z, r]
            to[:left] = 0
            to[left + width:] = 0
            part = a * 0
            for k in range(width):
                v = g[k]
                if kind == RELU:
                    v = v if s[k] > 0 else v * 0
                elif kind == TANH:
                    v = v * b * (a - s[k] * s[k] / a)
                to[left + k] = v
                part += v
            total += part
        sums[i, c, z] = total

"""What is done to a volume voxel by voxel, by channels, where no kernel of a convolution does it."""
import numpy as np
from numba import njit, prange

from znn.runtime.pointwise import NONE, RELU, TANH
from znn.runtime.threads import parallel

VOXELS = 1 << 14  # that a task takes


def elementwise(out, x, plus=None, by=None, bias=None, activation=None):
    """``out[c, p] = activation(by[c] x[c, p] + bias[c] + plus[c, p])``, what is absent left out.

    Parameters
    ----------
    out, x, plus : ndarray, (c, ...)
        Contiguous, of one shape and type; `out` may be one of the others.
    by, bias : ndarray, (c,)
    activation : None, "relu", or (a, b) for a tanh(b s)
    """
    channels, dtype = x.shape[0], x.dtype.type
    kind = NONE if activation is None else RELU if activation == "relu" else TANH
    a, b = activation if kind == TANH else (1.0, 1.0)
    by = np.ones(channels, dtype) if by is None else by
    bias = np.zeros(channels, dtype) if bias is None else bias
    flat = None if plus is None else plus.reshape(channels, -1)
    _elementwise(out.reshape(channels, -1), x.reshape(channels, -1), flat, by, bias, kind, dtype(a), dtype(b))


@parallel
def _elementwise(out, x, plus, by, bias, kind, a, b):
    channels, size = x.shape
    pieces = -(-size // VOXELS)
    for task in prange(channels * pieces):
        c, first = task // pieces, task % pieces * VOXELS
        end = min(first + VOXELS, size)
        _piece(out[c, first:end], x[c, first:end], None if plus is None else plus[c, first:end], by[c], bias[c], kind,
               a, b)


@njit(nogil=True, cache=True)
def _piece(out, x, plus, by, bias, kind, a, b):
    for k in range(len(x)):
        s = by * x[k] + bias
        if plus is not None:
            s += plus[k]
        if kind == RELU:
            s = s if s > 0 or s != s else x.dtype.type(0)
        elif kind == TANH:
            s = a * np.tanh(b * s)
        out[k] = s

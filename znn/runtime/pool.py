"""Sliding maximum over a volume and its gradient."""
import itertools

import numpy as np
from numba import prange

from znn.runtime import arena
from znn.runtime.threads import parallel


def max_filter(x, window, dilation):
    """``y[n, c, p] = max_k x[n, c, p + dilation k]``, k over the window; NaN wins, as in torch."""
    extent = [n - d * (k - 1) for n, d, k in zip(x.shape[2:], dilation, window)]
    y = arena.empty((*x.shape[:2], *extent), x.dtype)
    _max_filter(x, y, _taps(window, dilation))
    return y


def max_filter_gradient(x, y, grad, window, dilation):
    """Gradient for x: each output's gradient goes to the first voxel of its window that holds the maximum.

    The place of the maximum is found again by comparing x with y, which are both kept by their neighbours anyway.
    """
    dx = np.zeros_like(x)
    _scatter(x, y, grad, dx, _taps(window, dilation))
    return dx


def _taps(window, dilation):
    return np.array(list(itertools.product(*(range(0, k * d, d) for k, d in zip(window, dilation)))), np.int64)


@parallel
def _max_filter(x, y, taps):
    n, channels, depth, rows, width = y.shape
    for task in prange(n * channels * depth):
        i, c, z = task // (channels * depth), task // depth % channels, task % depth
        for r in range(rows):
            to = y[i, c, z, r]
            to[:] = x[i, c, z, r, :width]
            for t in range(1, len(taps)):
                dz, dy, dx = taps[t]
                v = x[i, c, z + dz, r + dy, dx:dx + width]
                for k in range(width):
                    to[k] = v[k] if v[k] > to[k] or v[k] != v[k] else to[k]


@parallel
def _scatter(x, y, grad, dx, taps):
    n, channels, depth, rows, width = y.shape
    for task in prange(n * channels):
        i, c = task // channels, task % channels
        left = np.empty(width, x.dtype)
        for z in range(depth):
            for r in range(rows):
                left[:] = grad[i, c, z, r]
                top = y[i, c, z, r]
                for t in range(len(taps)):
                    dz, dy, dk = taps[t]
                    v = x[i, c, z + dz, r + dy, dk:dk + width]
                    to = dx[i, c, z + dz, r + dy, dk:dk + width]
                    for k in range(width):
                        hit = v[k] == top[k]
                        to[k] += left[k] if hit else left[k] * 0
                        left[k] = left[k] * 0 if hit else left[k]

"""Sliding maximum over a volume and its gradient.

Four taps of the window are walked at once.  The places of the maxima are kept as uint8, the number of the tap in the
window, in rows that are padded with a number that no tap has::

    row 0             255 255 255 255 255 255 255 255      read in place of rows outside of the output
    row 1 + (n c z y)   0   3   1   1   2 255 255 255      read up to `reach` voxels before and after

so the gradient needs no case for the borders: it gathers, voxel by voxel of x, from the outputs that chose it.
"""
import itertools
import math

import numpy as np
from numba import njit, prange

from znn.runtime import arena, arrays, strips
from znn.runtime.threads import parallel

NOWHERE = 255   # no tap's number
MORE = True     # or None: numba compiles a loop for either type


def max_filter(x, window, dilation, out=None):
    """``y[n, c, p] = max_k x[n, c, p + dilation k]``, k over the window; NaN wins, as in torch.

    Parameters
    ----------
    x : ndarray, (n, c, z, y, x)
        float32 or float64, contiguous.
    window, dilation : (int, int, int)
    out : ndarray, optional
        Where the maxima are written: of y's shape, contiguous.

    Returns
    -------
    y : ndarray, (n, c, z - dilation_z (window_z - 1), ...)

    Raises
    ------
    ValueError
        If an argument is not as above, or x is smaller than the window reaches.
    """
    y, offsets = _output(x, window, dilation, out)
    _max_filter(x.ravel(), x.shape, y.ravel(), y.shape, None, 0, offsets, strips.height(y.shape[4]))
    return y


def max_filter_with_places(x, window, dilation):
    """`max_filter`, and where in its window each maximum lies; of equal ones, the first.

    Returns
    -------
    y : ndarray, (n, c, z - dilation_z (window_z - 1), ...)
    places : ndarray of uint8, (1 + n c z y, pitch)
        Number of the tap, in C order of the window, for each row of y from row 1 on; 255 in row 0 and after each row.

    Raises
    ------
    ValueError
        If the window has more than 255 taps, and as for `max_filter`.
    """
    y, offsets = _output(x, window, dilation)
    if len(offsets) > NOWHERE:
        raise ValueError(f"the gradient of a max filter knows windows of up to {NOWHERE} taps, found "
                         f"{' x '.join(map(str, window))} = {len(offsets)}: filter twice with smaller windows")
    places = arena.empty(_places_shape(x.shape, y.shape[2:]), np.dtype(np.uint8))
    places[0] = NOWHERE
    _max_filter(x.ravel(), x.shape, y.ravel(), y.shape, places.ravel(), places.shape[1], offsets,
                strips.height(y.shape[4]))
    return y, places


def max_filter_gradient(x_shape, places, grad, window, dilation):
    """Gradient for x: the sum of the gradients of those outputs whose maximum each voxel is.

    Parameters
    ----------
    x_shape : tuple of int
    places : ndarray of uint8
        From `max_filter_with_places`.
    grad : ndarray
        Gradient of the loss for y, contiguous.
    window, dilation : (int, int, int)

    Returns
    -------
    dx : ndarray, (n, c, z, y, x)

    Raises
    ------
    ValueError
        If an argument is not as above, or of another shape than `max_filter_with_places` makes of `x_shape`.
    """
    what = "the gradient of a max filter"
    extent = arrays.inner(what, x_shape, window, dilation)
    arrays.check(what, "grad", grad, (*x_shape[:2], *extent))
    arrays.check(what, "places", places, _places_shape(x_shape, extent), np.dtype(np.uint8))
    dx = arena.empty(x_shape, grad.dtype)
    taps = _taps(window, dilation)
    _gather(grad.ravel(), grad.shape, places.ravel(), places.shape[1], dx.ravel(), dx.shape, taps,
            strips.height(x_shape[4]))
    return dx


def _places_shape(x_shape, extent):
    """Of the places for an output of so many voxels (z, y, x)."""
    return 1 + math.prod(x_shape[:2]) * extent[0] * extent[1], -(-x_shape[4] // strips.LANES) * strips.LANES


def _taps(window, dilation):
    return np.array(list(itertools.product(*(range(0, k * d, d) for k, d in zip(window, dilation)))), np.int64)


def _output(x, window, dilation, out=None):
    """An array for the maxima, and how far from the window's first voxel its taps lie in memory."""
    arrays.check("max filter", "x", x)
    extent = arrays.inner("max filter", x.shape, window, dilation)
    offsets = _taps(window, dilation) @ np.array([x.shape[3] * x.shape[4], x.shape[4], 1])
    shape = *x.shape[:2], *extent
    if out is None:
        return arena.empty(shape, x.dtype), offsets
    arrays.check("max filter", "out", out, shape, x.dtype, written=True)
    return out, offsets


# Below, arrays are flat and rows are where they begin: a view of a row would count its references, which costs more
# than the row.  Unsigned, since numba asks of every signed index whether it counts from the end.

@parallel
def _max_filter(x, x_shape, y, shape, places, pitch, offsets, height):
    width = shape[4]
    for task in prange(strips.count(shape, height)):
        i, c, z, first, end = strips.place(task, shape, height)
        plane, x_plane = (i * shape[1] + c) * shape[2] + z, (i * shape[1] + c) * x_shape[2] + z
        for r in range(first, end):
            row = plane * shape[3] + r
            _row_of_maxima(x, (x_plane * x_shape[3] + r) * x_shape[4], offsets, y, row * width,
                           strips.whole_vectors(width, end - r), places, (1 + row) * pitch)
            if places is not None:
                _fill(places, (1 + row) * pitch + width, pitch - width, np.uint8(NOWHERE))


@njit(nogil=True, cache=True)
def _row_of_maxima(x, s, offsets, y, row, wide, places, p):
    """Maxima of `wide` voxels from s on into y and, unless None, their places."""
    last = len(offsets) - 1
    for t in range(0, last + 1, 4):
        t1, t2, t3 = min(t + 1, last), min(t + 2, last), min(t + 3, last)  # again the last: it changes nothing
        s0, s1, s2, s3 = s + offsets[t], s + offsets[t1], s + offsets[t2], s + offsets[t3]
        n0, n1, n2, n3 = np.uint8(t), np.uint8(t1), np.uint8(t2), np.uint8(t3)
        if t == 0:
            _best_of_four(x, s0, s1, s2, s3, n0, n1, n2, n3, y, row, wide, places, p, None)
        else:
            _best_of_four(x, s0, s1, s2, s3, n0, n1, n2, n3, y, row, wide, places, p, MORE)


@njit(nogil=True, cache=True)
def _best_of_four(x, s0, s1, s2, s3, n0, n1, n2, n3, y, row, wide, places, p, more):
    """The maxima of four taps and, with MORE, of what y holds."""
    s0, s1, s2, s3 = np.uint64(s0), np.uint64(s1), np.uint64(s2), np.uint64(s3)
    row, p = np.uint64(row), np.uint64(p)
    for k in range(np.uint64(wide)):
        v0, v1, v2, v3 = x[s0 + k], x[s1 + k], x[s2 + k], x[s3 + k]
        b = v0 if more is None else y[row + k]
        b0 = v0 if v0 > b or v0 != v0 else b
        b1 = v1 if v1 > b0 or v1 != v1 else b0
        b2 = v2 if v2 > b1 or v2 != v2 else b1
        y[row + k] = v3 if v3 > b2 or v3 != v3 else b2
        if places is not None:
            n = n0 if more is None else places[p + k]
            n = n0 if v0 > b or v0 != v0 else n
            n = n1 if v1 > b0 or v1 != v1 else n
            n = n2 if v2 > b1 or v2 != v2 else n
            places[p + k] = n3 if v3 > b2 or v3 != v3 else n


@parallel
def _gather(grad, shape, places, pitch, dx, x_shape, taps, height):
    width = x_shape[4]
    for task in prange(strips.count(x_shape, height)):
        i, c, z, first, end = strips.place(task, x_shape, height)
        channel = i * shape[1] + c
        for r in range(first, end):
            ahead = (channel * shape[2] + z) * shape[3] + r + strips.AHEAD
            strips.prefetch_row(grad, ahead * shape[4], shape[4])
            row = ((channel * x_shape[2] + z) * x_shape[3] + r) * width
            _row_of_gradients(grad, shape, places, pitch, channel, z, r, taps, dx, row, width,
                              strips.whole_vectors(width, end - r))


@njit(nogil=True, cache=True)
def _row_of_gradients(grad, shape, places, pitch, channel, z, r, taps, dx, row, width, wide):
    """Row (z, r) of dx, from the outputs of one channel."""
    last = len(taps) - 1
    for t in range(0, last + 1, 4):
        g0, p0 = _source(t, taps, shape, pitch, channel, z, r)
        g1, p1 = _source(t + 1, taps, shape, pitch, channel, z, r)
        g2, p2 = _source(t + 2, taps, shape, pitch, channel, z, r)
        g3, p3 = _source(t + 3, taps, shape, pitch, channel, z, r)
        n0, n1, n2, n3 = np.uint8(t), np.uint8(min(t + 1, last)), np.uint8(min(t + 2, last)), np.uint8(min(t + 3, last))
        if min(g0, g1, g2, g3) < 0 or max(g0, g1, g2, g3) + wide > len(grad):
            if t == 0:
                _fill(dx, row, width, dx.dtype.type(0))
            for g, p, n in ((g0, p0, n0), (g1, p1, n1), (g2, p2, n2), (g3, p3, n3)):
                for k in range(width):
                    if places[p + k] == n:
                        dx[row + k] += grad[g + k]
        elif t == 0:
            _sum_of_four(grad, g0, g1, g2, g3, places, p0, p1, p2, p3, n0, n1, n2, n3, dx, row, wide, None)
        else:
            _sum_of_four(grad, g0, g1, g2, g3, places, p0, p1, p2, p3, n0, n1, n2, n3, dx, row, wide, MORE)


@njit(nogil=True, cache=True)
def _source(t, taps, shape, pitch, channel, z, r):
    """Where the row that tap t brings to row (z, r) begins, in the gradients and in the places."""
    if t >= len(taps):
        return 0, 0
    section, row = z - taps[t, 0], r - taps[t, 1]
    if section < 0 or section >= shape[2] or row < 0 or row >= shape[3]:
        return 0, 0
    row += (channel * shape[2] + section) * shape[3]
    return row * shape[4] - taps[t, 2], (1 + row) * pitch - taps[t, 2]


@njit(nogil=True, cache=True)
def _sum_of_four(grad, g0, g1, g2, g3, places, p0, p1, p2, p3, n0, n1, n2, n3, dx, row, wide, more):
    """What four taps bring where each was chosen, and, with MORE, what dx holds."""
    g0, g1, g2, g3 = np.uint64(g0), np.uint64(g1), np.uint64(g2), np.uint64(g3)
    p0, p1, p2, p3, row = np.uint64(p0), np.uint64(p1), np.uint64(p2), np.uint64(p3), np.uint64(row)
    zero = dx.dtype.type(0)
    for k in range(np.uint64(wide)):
        v = zero if more is None else dx[row + k]
        v += grad[g0 + k] if places[p0 + k] == n0 else zero
        v += grad[g1 + k] if places[p1 + k] == n1 else zero
        v += grad[g2 + k] if places[p2 + k] == n2 else zero
        v += grad[g3 + k] if places[p3 + k] == n3 else zero
        dx[row + k] = v


@njit(nogil=True, cache=True)
def _fill(out, start, width, value):
    start = np.uint64(start)
    for k in range(np.uint64(width)):
        out[start + k] = value

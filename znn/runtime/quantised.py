"""Volumes of integers of eight bits, four channels an element (`znn.codegen.integers`): from and to float32.

Number q of channel c stands for ``(q - zero) / by[c]``, rounded to the nearest, of two the even one, within 0 to 255.
"""
import numpy as np
from numba import njit, prange

from znn.codegen.group import U8
from znn.runtime.threads import parallel

VOXELS = 1 << 13  # that a task takes


def fours(array, axis=0):
    """Bytes, signed or not, as elements of four neighbours along an axis, the first in the lowest bits.

    Returns
    -------
    ndarray of uint32
        As `array`, but for the axis, which has a fourth of its extent, rounded up; contiguous.
    """
    array = np.moveaxis(array, axis, -1)
    full = np.zeros((*array.shape[:-1], U8.elements(array.shape[-1]) * U8.count), array.dtype)
    full[..., :array.shape[-1]] = array
    return np.ascontiguousarray(np.moveaxis(full.view("<u4").astype(np.uint32, copy=False), -1, axis))


def quantise(out, x, by, zero):
    """Write the integers of x, float32 (c, z, y, x), into `out`, uint32 (elements, z, y, x).

    Parameters
    ----------
    out, x : ndarray
        Contiguous. What is beyond the last channel becomes 0; so does NaN.
    by : ndarray of float32, (channels,)
    zero : int
    """
    _quantise(out.reshape(len(out), -1), x.reshape(len(x), -1), by, np.float32(zero))


def dequantise(out, x, by, zero):
    """Write what the integers of x stand for into `out`; arguments as for `quantise`, the two volumes exchanged."""
    _dequantise(out.reshape(len(out), -1), x.reshape(len(x), -1), by, np.float32(zero))


@parallel
def _quantise(out, x, by, zero):
    channels, size = x.shape
    pieces = -(-size // VOXELS)
    for task in prange(len(out) * pieces):
        g, first = task // pieces, task % pieces * VOXELS
        end = min(first + VOXELS, size)
        out[g, first:end] = 0
        for c in range(4 * g, min(4 * g + 4, channels)):
            _put(out[g, first:end], x[c, first:end], by[c], zero, np.uint32(8 * (c % 4)))


@parallel
def _dequantise(out, x, by, zero):
    channels, size = out.shape
    pieces = -(-size // VOXELS)
    for task in prange(channels * pieces):
        c, first = task // pieces, task % pieces * VOXELS
        end = min(first + VOXELS, size)
        _take(out[c, first:end], x[c // 4, first:end], by[c], zero, np.uint32(8 * (c % 4)))


@njit(nogil=True, cache=True)
def _put(out, x, by, zero, bit):
    for k in range(len(out)):
        q = np.rint(x[k] * by + zero)
        q = q if q > np.float32(0) else np.float32(0)
        q = q if q < np.float32(255) else np.float32(255)
        out[k] |= np.uint32(q) << bit


@njit(nogil=True, cache=True)
def _take(out, x, by, zero, bit):
    for k in range(len(out)):
        out[k] = (np.float32(x[k] >> bit & np.uint32(255)) - zero) / by

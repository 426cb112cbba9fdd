"""Volumes between float32 and groups of narrow numbers (`znn.codegen.group`).

Elements are uint32, the first channel of a group in the lowest bits; channels that fill the last group up are zero.
"""
import numpy as np
from numba import njit, prange

from znn.runtime.threads import parallel

VOXELS = 1 << 13  # that a task takes


def grouped(array, group, axis=0):
    """A float32 array as elements of bf16, each holding neighbours along an axis.

    Parameters
    ----------
    array : ndarray
    group : Group
    axis : int

    Returns
    -------
    ndarray of uint32
        As `array`, but for the axis, which has `group.elements` of its extent; contiguous.
    """
    array = np.moveaxis(np.asarray(array, np.float32), axis, 0)
    full = np.zeros((group.elements(len(array)) * group.count, *array.shape[1:]), np.float32)
    full[:len(array)] = array
    out = np.empty((len(full) // group.count, *array.shape[1:]), np.uint32)
    _group(out.reshape(len(out), -1), full.reshape(len(full), -1).view(np.uint32))
    return np.ascontiguousarray(np.moveaxis(out, 0, axis))


def to_groups(out, x):
    """Write x, float32 (c, z, y, x), as elements of bf16 into `out`, uint32 (elements, z, y, x); both contiguous."""
    _group(out.reshape(len(out), -1), x.reshape(len(x), -1).view(np.uint32))


def from_groups(out, x):
    """Write x, elements of bf16, as float32 into `out`; shapes are those of `to_groups`."""
    _ungroup(out.reshape(len(out), -1).view(np.uint32), x.reshape(len(x), -1))


@parallel
def _group(out, x):
    channels, size = x.shape
    pieces = -(-size // VOXELS)
    for task in prange(len(out) * pieces):
        g, first = task // pieces, task % pieces * VOXELS
        end = min(first + VOXELS, size)
        _pairs(out[g, first:end], x[2 * g, first:end], x[min(2 * g + 1, channels - 1), first:end],
               np.uint32(2 * g + 1 < channels))


@parallel
def _ungroup(out, x):
    channels, size = out.shape
    pieces = -(-size // VOXELS)
    for task in prange(channels * pieces):
        c, first = task // pieces, task % pieces * VOXELS
        end = min(first + VOXELS, size)
        _half(out[c, first:end], x[c // 2, first:end], np.uint32(c % 2))


@njit(nogil=True, cache=True)
def _pairs(out, low, high, there):
    for k in range(len(out)):
        out[k] = rounded(low[k]) >> np.uint32(16) | (rounded(high[k]) & np.uint32(0xffff0000)) * there


@njit(nogil=True, cache=True)
def _half(out, x, upper):
    shift = np.uint32(16) * (np.uint32(1) - upper)
    for k in range(len(out)):
        out[k] = (x[k] << shift) & np.uint32(0xffff0000)


@njit(inline="always")
def rounded(bits):
    """Bits of a float32 number with those of the nearest bf16 in the upper half; a NaN becomes the positive one."""
    finite = bits & np.uint32(0x7fffffff) <= np.uint32(0x7f800000)
    nearest = bits + np.uint32(0x7fff) + (bits >> np.uint32(16) & np.uint32(1))
    return nearest if finite else np.uint32(0x7fc00000)

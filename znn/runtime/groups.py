"""Volumes of groups of narrow numbers (`znn.codegen.group`): from and to float32, sliding maxima, pointwise passes.

Elements are uint32, the first channel of a group in the lowest bits; channels that fill the last group up are zero.
"""
import numpy as np
from numba import njit, prange

from znn.codegen import target, voxels
from znn.runtime import driver, kernel
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


def max_filter(out, x, window, dilation, group):
    """`znn.runtime.pool.max_filter` of elements.

    Parameters
    ----------
    out, x : ndarray of uint32, (elements, z, y, x)
        Contiguous.
    window, dilation : (int, int, int)
    group : Group
    """
    code = kernel.address(voxels.maxima, target.current(), group, x.shape, tuple(window), tuple(dilation))
    _run(code, out, x, None, None, out.shape[0] * out.shape[1] * out.shape[2])


def elementwise(out, x, group, plus=None, by=None, bias=None, activation=None):
    """`znn.runtime.elementwise.elementwise` of elements.

    Parameters
    ----------
    out, x, plus : ndarray of uint32, (elements, z, y, x)
        Contiguous, of one shape; `out` may be one of the others.
    group : Group
    by, bias : ndarray of float32, (channels,)
    activation : None, "relu", or (a, b) for a tanh(b s)
    """
    elements, size = len(x), x[0].size
    numbers = np.repeat(np.float32([[1], [0]]), elements * group.count, 1)
    for row, given in zip(numbers, (by, bias)):
        if given is not None:
            row[:len(given)] = given
    code = kernel.address(voxels.pointwise, target.current(), group, elements, size, plus is not None, activation)
    _run(code, out, x, plus, numbers, voxels.tasks(elements, size))


def _run(code, out, x, plus, numbers, tasks):
    places = (0 if a is None else a.ctypes.data for a in (out, x, plus, numbers))
    driver.run([(code, *places, tasks)])


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

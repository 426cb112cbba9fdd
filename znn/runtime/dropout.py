"""Dropout whose mask is a function of a seed and a voxel's number: nothing is kept for the gradient but the seed.

Counter-based random numbers (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) have no state, so the
mask is the same whatever computes which voxel.  A chunk of voxels hashes the seed and its number to 64 bits
(splitmix64, Steele et al., 2014); a voxel hashes its number in the chunk with either half (the finaliser of
MurmurHash3, Appleby), in 32 bits, of which a vector holds twice as many.
"""
import numpy as np
from numba import njit, prange

from znn.runtime import arena, arrays
from znn.runtime.threads import parallel

CHUNK = 1 << 12


def dropout(x, seed, p):
    """``y[i] = x[i] / (1 - p)`` with probability 1 - p, otherwise zero, and always zero for p = 1.

    It is linear in x, and its own gradient: the same with the gradient for y in place of x.

    Parameters
    ----------
    x : ndarray
        float32 or float64, contiguous.
    seed : int
        0 <= seed < 2**64.
    p : float
        In [0, 1].

    Returns
    -------
    y : ndarray

    Raises
    ------
    ValueError
        If x is not as above.
    """
    arrays.check("dropout", "x", x)
    y = arena.empty(x.shape, x.dtype)
    scale = 1 / (1 - p) if p < 1 else 0.0
    _dropout(x.ravel(), y.ravel(), np.uint64(seed), np.uint32(min(round(p * 2**32), 2**32 - 1)), x.dtype.type(scale))
    return y


@parallel
def _dropout(x, y, seed, threshold, scale):
    for chunk in prange(-(-x.size // CHUNK)):
        key = _splitmix64(seed + np.uint64(chunk) * np.uint64(0x9E3779B97F4A7C15))
        start = chunk * CHUNK
        _drop(x, y, np.uint64(start), np.uint64(min(CHUNK, x.size - start)), np.uint32(key), np.uint32(key >> 32),
              threshold, scale)


@njit(nogil=True, cache=True)
def _drop(x, y, start, size, low, high, threshold, scale):
    zero = x.dtype.type(0)
    for k in range(size):
        v = x[start + k] * scale
        y[start + k] = v if _mix32(_mix32(np.uint32(k) ^ low) ^ high) >= threshold else zero


@njit(inline="always")
def _splitmix64(h):
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(31))


@njit(inline="always")
def _mix32(h):
    h = np.uint32((h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    h = np.uint32((h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(h ^ (h >> np.uint32(16)))

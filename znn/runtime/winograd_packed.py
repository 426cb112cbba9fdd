"""The weights of a convolution at points of the plane, in the order in which kernels read them."""
import math

import numpy as np
from numba import njit, prange

from znn.loops.contraction import row_major
from znn.runtime import arena
from znn.runtime.threads import parallel

CHUNK = 64  # weights that are transformed together


class PackedWeights:
    """Where the kernels of all blocks of output channels find their weights at the points, and how these are made.

    The weights of a block at a plane of taps are one section: all points one after the other, each packed in the same
    way.

    Parameters
    ----------
    along_y, along_x : ndarray, (points, taps)
        The transforms.
    ci, co, kz : int
    together : int
        Output channels of a block; the last one has what is left.
    packings : list of Packing
        Of a whole block, and of the last one if that is shorter.
    mirrored : bool
        As for `winograd_plane.PlaneTiles`.

    Attributes
    ----------
    offsets : ndarray, (blocks, kz)
        Where the sections begin, in elements.
    """

    def __init__(self, along_y, along_x, ci, co, kz, together, packings, mirrored):
        self._along, points = (along_y, along_x), len(along_y) * len(along_x)
        taps = kz, along_y.shape[1], along_x.shape[1]
        steps, (of_o, of_i), sign, start = _order(ci, co, taps, mirrored)
        self._steps, line = (sign * steps[3], sign * steps[4]), arena.LINE // along_y.itemsize
        firsts, self._size, self._sections = [], 0, []
        self.offsets = np.zeros((-(-co // together), kz), np.int64)
        for block in range(len(self.offsets)):
            whole = (block + 1) * together <= co
            source = packings[0 if whole else -1].source.reshape(points, -1)[0]
            if block == 0 or not whole:
                at = sum(map(len, firsts))
                firsts.append(np.where(source < 0, -1, source // ci * of_o + source % ci * of_i))
            for z in range(kz):
                base = start + block * together * of_o + z * sign * steps[2]
                self._sections.append((at, len(source), base, self._size))
                self.offsets[block, z] = self._size
                self._size += -(-points * len(source) // line) * line
        self._first = np.concatenate(firsts).astype(np.int32)  # the first tap's place in its section, -1 for none
        self._chunks = np.array([(*section, s) for section in self._sections for s in range(0, section[1], CHUNK)])

    def at_points(self, w):
        """All sections, one after the other, for the weights w."""
        out = arena.empty((self._size,), w.dtype)
        _at_points(w.reshape(-1), self._chunks, self._first, *self._along, self._steps, out)
        return out


def _order(ci, co, taps, mirrored):
    """Steps of the weights' axes, from output to output and from input to input, and the sign and start of taps."""
    if mirrored:
        steps = row_major((ci, co, *taps))
        return steps, (steps[1], steps[0]), -1, math.prod(taps) - 1
    steps = row_major((co, ci, *taps))
    return steps, steps[:2], 1, 0


@parallel
def _at_points(w, chunks, first, along_y, along_x, steps, out):
    (py, ky), (px, kx) = along_y.shape, along_x.shape
    for n in prange(len(chunks)):
        at, many, base, offset, s = chunks[n]
        taps, half = np.zeros((ky, kx, CHUNK), w.dtype), np.zeros((py, kx, CHUNK), w.dtype)
        count = min(CHUNK, many - s)
        for j in range(count):
            place = first[at + s + j]
            if place >= 0:
                for a in range(ky):
                    for b in range(kx):
                        taps[a, b, j] = w[base + place + a * steps[0] + b * steps[1]]
        for p in range(py):
            for b in range(kx):
                for a in range(ky):
                    _add(half[p, b], along_y[p, a], taps[a, b])
        for p in range(py):
            for q in range(px):
                whole = np.zeros(CHUNK, w.dtype)
                for b in range(kx):
                    _add(whole, along_x[q, b], half[p, b])
                start = offset + (p * px + q) * many + s
                out[start:start + count] = whole[:count]


@njit(inline="always")
def _add(total, factor, values):
    for j in range(CHUNK):
        total[j] += factor * values[j]

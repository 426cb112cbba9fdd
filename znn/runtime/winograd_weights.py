"""The gradient for the weights at points: half the multiplications, as `winograd` has it for the other passes.

A strip is a few tiles of one phase, as many as the second cache holds at all points.  Its rows of x and of the
gradient are transformed to the points, where their products are added up (`points_weights`, an ordinary contraction).
Strips are divided among a fixed number of groups with a sum each: results do not depend on the number of threads.
"""
import itertools
from collections import Counter

import numba
import numpy as np
from numba import njit, prange

from znn.codegen.plan import Epilogue
from znn.loops.convolution import points_weights
from znn.loops.winograd import matrices
from znn.runtime import arena, default
from znn.runtime.database import follows_schedules
from znn.runtime.driver import call, take
from znn.runtime.request import Request
from znn.runtime.threads import parallel
from znn.runtime.winograd import blocks, record, transform

STRIP = 512 << 10    # bytes of rows at points, to stay in the second cache
GROUPS = 32          # sums at most
SUM_BYTES = 8 << 20  # of all sums together


class WeightTiles:
    """The gradient for a convolution's weights in tiles of m rows, ready to run.

    Parameters
    ----------
    ci, co : int
    taps, dilation : (int, int, int)
    shape : (int, int, int, int)
        Of the gradient: n, z, y, x.
    m : int
    dtype : numpy.dtype
    where : Target
    """

    def __init__(self, ci, co, taps, dilation, shape, m, dtype, where):
        self.ci, self.co, self.taps, self.dilation, self.shape = ci, co, taps, dilation, shape
        self.m, self.dtype = m, dtype
        values, self._taps_at, inputs = matrices(m, taps[1])
        self.points, self.halo = len(inputs), dilation[2] * (taps[2] - 1)
        layout = _layout(self.points, ci, co, taps, dilation, shape, m, dtype, where)
        parts, self.pitches, strips, self.height, heights = layout
        self._blocks = np.array(parts)
        self.strips = shape[0] * shape[1] * dilation[1] * strips * len(parts)
        self._code = np.zeros((len(parts), self.height + 1, 2), np.int64)
        for (i, (first, end)), h in itertools.product(enumerate(parts), heights):
            k = _kernel(_request(ci, co, taps[2], h, end - first, dilation[2], *self.pitches, self.height, dtype,
                                 where))
            self._code[i, h] = k.address, k.tasks
        self._transforms = transform(inputs, where, dtype), transform(values, where, dtype)
        size = taps[0] * self.points * ci * taps[2] * co * dtype.itemsize
        self.groups = max(1, min(GROUPS, self.strips, SUM_BYTES // size))

    def run(self, x, g, start):
        """Gradient for w (co, ci, kz, ky, kx) from x (n, ci, z, y, x) and g (n, co, z, rows, pitch), whose rows begin
        at column `start`."""
        threads, (kz, _, kx), (v_pitch, d_pitch) = numba.get_num_threads(), self.taps, self.pitches
        sums = arena.empty((self.groups, kz, self.points, self.ci, kx, self.co), self.dtype)
        at_points = self.points * self.height * (self.ci * v_pitch + self.co * d_pitch)
        scratch, zeros = arena.empty((threads, at_points), self.dtype), np.zeros(v_pitch, self.dtype)
        tables, counter = np.zeros((threads, 4, self.height, self.points, 2), np.int64), np.zeros(1, np.int64)
        grid = (*self.shape[:3], *self.dilation[:2], kz, self.m, self.points, self.ci, self.co, self.halo, v_pitch,
                d_pitch, self.dtype.itemsize, self.height, self.strips)
        _run(grid, record(x, 0, x.shape[2:4], (0, 0)), record(g, start, self.shape[1:3], (0, 0)), self._blocks,
             self._code, self._transforms, sums, zeros.ctypes.data, scratch, tables, counter)
        dw = arena.empty((self.co, self.ci, *self.taps), self.dtype)
        _from_points(sums, self._taps_at.astype(self.dtype), dw)
        return dw


def requests(ci, co, taps, dilation, shape, m, dtype, where):
    """What `WeightTiles` asks for, and how often a run runs it on one thread: dict of `Request` to int."""
    points = m + taps[1] - 1
    parts, pitches, _, height, heights = _layout(points, ci, co, taps, dilation, shape, m, dtype, where)
    each, found = shape[0] * shape[1] * taps[0] * points, Counter()
    for (first, end), h in itertools.product(parts, sorted(heights)):
        request = _request(ci, co, taps[2], h, end - first, dilation[2], *pitches, height, dtype, where)
        found[request] += each * heights[h]
    return dict(found)


def _layout(points, ci, co, taps, dilation, shape, m, dtype, where):
    """Blocks of columns, pitches of rows at points of x and of the gradient, how many strips a phase has, how many
    tiles a strip, and how many strips of a plane have so many tiles: one at a phase's end may have fewer."""
    held = dtype.itemsize * points * (ci + co)  # bytes of a column
    parts = blocks(shape[3], STRIP // held, where.lanes(dtype))
    longest = max(end - first for first, end in parts)
    pitches = arena.pitch(longest + dilation[2] * (taps[2] - 1), dtype), arena.pitch(longest, dtype)
    tiles = [-(-len(range(p, shape[2], dilation[1])) // m) for p in range(min(dilation[1], shape[2]))]
    strips = -(-max(tiles) // max(1, STRIP // (held * longest)))
    height = -(-max(tiles) // strips)
    heights = Counter(min(height, t - s) for t in tiles for s in range(0, t, height))
    return parts, pitches, strips, height, heights


def _request(ci, co, taps, rows, columns, dilation, v_pitch, d_pitch, held, dtype, where):
    return Request(points_weights(ci, co, taps, rows, columns, dilation, v_pitch, d_pitch, held),
                   default.weights_rule(dtype.itemsize, tasks=1), where, dtype, "inside", Epilogue(accumulate=True))


@follows_schedules
def _kernel(request):
    return request.kernel()


@parallel
def _run(grid, x, g, blocks, code, transforms, sums, zeros, scratch, tables, counter):
    for thread in prange(len(tables)):
        _work(grid, x, g, blocks, code, transforms, sums, zeros, scratch[thread].ctypes.data, tables[thread], counter)


@njit(nogil=True, cache=True)
def _work(grid, x, g, blocks, code, transforms, sums, zeros, scratch, tables, counter):
    """What a thread does: take a group, add up its strips, until there are none."""
    kz, m, points, ci, co, halo, v_pitch, d_pitch, item, height, strips = grid[5:]
    of_v, of_d = height * ci * v_pitch * item, height * co * d_pitch * item  # from point to point
    v, d = scratch, scratch + points * of_v
    v_rows, x_rows, d_rows, g_rows = tables
    for s in range(height):
        for p in range(points):
            v_rows[s, p] = v + p * of_v + s * v_pitch * item, height * v_pitch
            d_rows[s, p] = d + p * of_d + s * d_pitch * item, height * d_pitch
    groups = len(sums)
    group = take(counter)
    while group < groups:
        sums[group] = 0
        for strip in range(group * strips // groups, (group + 1) * strips // groups):
            block, place = strip % len(blocks), _place(strip // len(blocks), grid)
            (first, end), count = blocks[block], place[3]
            _rows(place, 0, first, grid, g, zeros, m, g_rows)
            for s in range(count):
                call(transforms[1], (d_rows[s].ctypes.data, g_rows[s].ctypes.data, 0, end - first, 0, co))
            for k in range(kz if count else 0):
                _rows(place, k * grid[3], first, grid, x, zeros, points, x_rows)
                for s in range(count):
                    call(transforms[0], (v_rows[s].ctypes.data, x_rows[s].ctypes.data, 0, end - first + halo, 0, ci))
                for p in range(points):
                    call(code[block, count, 0], (sums[group, k, p].ctypes.data, v + p * of_v, d + p * of_d, 0, 0,
                                                 code[block, count, 1]))
        group = take(counter)


@njit(nogil=True, inline="always")
def _place(strip, grid):
    """Volume, plane and first row of a strip, and how many tiles it has."""
    planes, rows, dy, m, height = grid[1], grid[2], grid[4], grid[6], grid[14]
    strips = (rows - 1) // (m * dy * height) + 1
    tile, rest = strip % strips * height, strip // strips
    row, rest = tile * m * dy + rest % dy, rest // dy
    return rest // planes, rest % planes, row, min(height, max(0, (rows - row - 1) // (m * dy) + 1))


@njit(nogil=True, inline="always")
def _rows(place, further, first, grid, of, zeros, count, table):
    """Write where `count` rows of each tile of a strip are, some planes further, zeros where there are none."""
    dy, m, item = grid[4], grid[6], grid[13]
    start = of[0] + place[0] * of[1] + (place[1] + further) * of[3] + first * item
    for s in range(place[3]):
        for i in range(count):
            y = place[2] + (s * m + i) * dy
            if y < of[6]:
                table[s, i] = start + y * of[4], of[2] // item
            else:
                table[s, i] = zeros, 0


@parallel
def _from_points(sums, taps_at, dw):
    """dw (co, ci, kz, ky, kx) from the groups' sums (groups, kz, points, ci, kx, co)."""
    groups, kz, points, ci, kx, co = sums.shape
    for i in prange(ci):
        at_point, found = np.empty(co, sums.dtype), np.empty((taps_at.shape[1], co), sums.dtype)
        for z in range(kz):
            for k in range(kx):
                found[:] = 0
                for p in range(points):
                    at_point[:] = 0
                    for group in range(groups):
                        at_point += sums[group, z, p, i, k]
                    for y in range(len(found)):
                        found[y] += taps_at[p, y] * at_point
                for y in range(len(found)):
                    for o in range(co):
                        dw[o, i, z, y, k] = found[y, o]

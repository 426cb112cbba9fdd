"""Convolutions with half the multiplications: rows of the output in tiles along y, computed at points.

A tile is m rows of the output, `dilation` apart.  For all channels of it a task transforms the m + r - 1 rows of the
input that they need into rows at points, convolves each along x with the weights at its point (`points_forward`, an
ordinary contraction), and transforms back; bias and activation are part of that.  What lies between stays in the second
cache.  `znn.loops.winograd` has the mathematics.
"""
import itertools
import math
from collections import Counter
from dataclasses import replace

import numba
import numpy as np
from numba import njit, prange

from znn.codegen.group import Group, elements, members
from znn.codegen.plan import PLAIN, Epilogue
from znn.codegen.rows import rows, touch
from znn.loops.contraction import row_major
from znn.loops.convolution import points_forward
from znn.loops.winograd import matrices
from znn.runtime import arena, default
from znn.runtime.database import follows_schedules
from znn.runtime.driver import call, take
from znn.runtime.groups import grouped
from znn.runtime.kernel import address, array_type
from znn.runtime.request import Request
from znn.runtime.threads import parallel

F32 = np.dtype(np.float32)
SCRATCH = 512 << 10  # bytes of rows at points, to stay in the second cache


def tiles(rows, dilation, m):
    """How many tiles of m rows, `dilation` apart, so many rows make."""
    return sum(-(-len(range(phase, rows, dilation)) // m) for phase in range(dilation))


class Tiles:
    """A convolution in tiles of m rows, ready to run.

    Parameters
    ----------
    ci, co : int
        Channels.
    taps, dilation : (int, int, int)
    width : int
        Columns of the output.
    m : int
    dtype : numpy.dtype or Group
        Of the elements of the input.
    epilogue : Epilogue
    where : Target
    mirrored : bool
        Whether the weights are those of the convolution that this one is the gradient of: (ci, co, kz, ky, kx), taps
        in reverse order.
    """

    def __init__(self, ci, co, taps, dilation, width, m, dtype, epilogue, where, mirrored=False):
        self.channels, self.ci, self.co = ci, elements(dtype, ci), co
        self.stored = elements(epilogue.stores, co)  # elements of a voxel of the output
        self.taps, self.dilation, self.m, self.dtype = taps, dilation, m, dtype
        values, weights, inputs = matrices(m, taps[1])
        group = dtype if isinstance(dtype, Group) else None
        sums = F32 if group else dtype
        self.points, self._weights_at = len(inputs), weights.astype(sums)
        self.halo, self.blocks, self.pitches = _layout(self.points, self.ci, co, taps, dilation, width, dtype, where)
        self._transforms = (transform(inputs, where, dtype, Epilogue(stores=group)),
                            transform(values.T, where, sums, epilogue), address(touch, where, dtype, self.points))
        parts = _parts(self.points, self.ci, co, taps, dilation, width, dtype, where)
        self._lay_out_weights([[[_kernel(request, e) for e in (PLAIN, Epilogue(accumulate=True))] for request in block]
                               for block in parts], mirrored)

    def _lay_out_weights(self, blocks, mirrored):
        """Where all kernels find their weights: `_code` holds addresses of machine code, then offsets of weights.

        The packed weights of a part at a plane of taps are one section; every element of it comes from a column of taps
        (`_columns`, its first element in w, -1 for none; a row for each channel that an element holds) at a point
        (`_at`).
        """
        kz, _, kx = self.taps
        shape = (self.channels, self.co, *self.taps) if mirrored else (self.co, self.channels, *self.taps)
        steps = row_major(shape)
        (ci, co), sign = (steps[:2], -1) if mirrored else (steps[1::-1], 1)
        start = math.prod(self.taps) - 1 if mirrored else 0
        self.column_step, line = sign * steps[3], arena.LINE // self.dtype.itemsize
        columns, at, size, known = [], [], 0, {}
        self._code = np.zeros((len(blocks), max(map(len, blocks)), 2 + kz), np.int64)
        for entries, parts in zip(self._code, blocks):
            for entry, (first, later) in zip(entries, parts):
                if first not in known:
                    source = first.packing.source
                    source = np.append(source, np.full(-len(source) % line, -1))
                    point, o, i, k = np.unravel_index(np.maximum(source, 0), (self.points, self.co, self.ci, kx))
                    inputs = [members(self.dtype) * i + j for j in range(members(self.dtype))]
                    for z in range(kz):
                        found = start + o * co + sign * (z * steps[2] + k * steps[4])
                        columns.append([np.where((source < 0) | (c >= self.channels), -1, found + c * ci)
                                        for c in inputs])
                        at.append(point)
                    known[first] = size + len(source) * np.arange(kz)
                    size += len(source) * kz
                entry[:] = first.address, later.address, *known[first]
        self._columns, self._at = np.concatenate(columns, 1).astype(np.int32), np.concatenate(at).astype(np.uint8)

    def weights(self, w):
        """The weights at the points, all sections one after the other."""
        out = arena.empty(self._columns.shape, w.dtype)
        for columns, found in zip(self._columns, out):
            _weights_at_points(w.reshape(-1), columns, self._at, self._weights_at, self.column_step, found)
        return grouped(out, self.dtype)[0] if isinstance(self.dtype, Group) else out[0]

    def run(self, out, source, w, bias=None, start=0, extent=None, before=(0, 0)):
        """out (n, co, z, y, x) from the rows of source (n, ci, z, rows, pitch).

        Parameters
        ----------
        out, source, w, bias : ndarray
        start : int
            Column of source that the first tap of the first voxel reads.
        extent : (int, int), optional
            Planes and rows of source that count, all unless given; there are zeros around them.
        before : (int, int)
            How many of these planes and rows the first voxel's taps begin with.
        """
        scratch = arena.empty(self.scratch_shape(), array_type(self.dtype))
        self.launch(out, source, self.weights(w), scratch, bias, start, extent, before)

    def scratch_shape(self):
        """Of what the threads at hand compute in, a row each."""
        per_point = [c * p for c, p in zip((self.ci, self.co), self.pitches)]
        return numba.get_num_threads(), self.points * sum(per_point) + self.pitches[1]

    def launch(self, out, source, weights, scratch, bias=None, start=0, extent=None, before=(0, 0)):
        """`run` with what `weights` gave, in `scratch` (threads or more, scratch_shape()[1])."""
        threads, code, item = numba.get_num_threads(), self._code.copy(), self.dtype.itemsize
        code[..., 2:] = weights.ctypes.data + item * code[..., 2:]
        zeros = np.zeros(self.pitches[0], array_type(self.dtype))
        tables, counter = np.zeros((threads, 5, self.points, 2), np.int64), np.zeros(1, np.int64)
        grid = (out.shape[0], *out.shape[2:4], *self.dilation[:2], self.taps[0], self.m, self.points, self.ci, self.co,
                self.halo, *self.pitches, item, self.stored)
        _run(grid, record(source, start, extent or source.shape[2:4], before), record(out, 0, out.shape[2:4], (0, 0)),
             np.array(self.blocks), code, self._transforms, 0 if bias is None else bias.ctypes.data,
             zeros.ctypes.data, scratch.ctypes.data, scratch.strides[0], tables, counter)


def transform(matrix, where, dtype, epilogue=PLAIN):
    """Address of the machine code that makes rows of rows by a matrix."""
    return address(rows, where, dtype, tuple(map(tuple, matrix.tolist())), epilogue)


def blocks(width, most, lanes):
    """A row's columns in blocks (first, end) of about `most`, none shorter than a vector unless the row is."""
    count = -(-width // max(lanes, min(width, most // lanes * lanes)))
    step = -(-width // (count * lanes)) * lanes
    starts = [s for s in range(0, width, step) if s == 0 or width - s >= lanes]
    return list(zip(starts, [*starts[1:], width]))


def requests(ci, co, taps, dilation, shape, m, dtype, where):
    """What `Tiles` asks for, and how often a run runs it on one thread: dict of `Request` to int.

    `shape` is (n, planes, rows, columns) of the output, the planes being those that all taps are used for.
    """
    runs = shape[0] * shape[1] * taps[0] * tiles(shape[2], dilation[1], m)
    parts = _parts(m + taps[1] - 1, ci, co, taps, dilation, shape[3], dtype, where)
    return {request: runs * count for request, count in Counter(itertools.chain(*parts)).items()}


def _layout(points, ci, co, taps, dilation, width, dtype, where):
    """Columns that taps reach beyond a row, its blocks, and the pitches of rows at points, of input and of output."""
    halo, held = dilation[2] * (taps[2] - 1), points * (ci + co) * dtype.itemsize  # bytes of a column
    parts = blocks(width, SCRATCH // held, where.lanes(dtype))
    longest = max(end - first for first, end in parts)
    return halo, parts, (arena.pitch(longest + halo, dtype), arena.pitch(longest, dtype))


def _parts(points, ci, co, taps, dilation, width, dtype, where):
    """For each block of columns what is asked for its parts."""
    _, parts, pitches = _layout(points, ci, co, taps, dilation, width, dtype, where)
    return [[Request(points_forward(points, ci, co, taps[2], columns, dilation[2], *pitches), default.RULES[rule],
                     where, dtype, "before", task="p")
             for *columns, rule in default.columns(end - first, co, where.lanes(dtype))] for first, end in parts]


@follows_schedules
def _kernel(request, epilogue):
    return replace(request, epilogue=epilogue).kernel()


def record(array, start, extent, before):
    """Address and strides in bytes of an array, planes and rows that count, and those of zeros before them."""
    n, c, z, y, x = array.strides
    return array.ctypes.data + start * x, n, c, z, y, *extent, *before


@parallel
def _weights_at_points(w, columns, at, matrix, step, out):
    for i in prange(len(out)):
        total = out.dtype.type(0)
        if columns[i] >= 0:
            for k in range(matrix.shape[1]):
                total += matrix[at[i], k] * w[columns[i] + k * step]
        out[i] = total


@parallel
def _run(grid, source, out, blocks, code, transforms, bias, zeros, scratch, size, tables, counter):
    for thread in prange(len(tables)):
        _work(grid, source, out, blocks, code, transforms, bias, zeros, scratch + thread * size, tables[thread],
              counter)


@njit(nogil=True, cache=True)
def _work(grid, source, out, blocks, code, transforms, bias, zeros, scratch, tables, counter):
    """What a thread does: take a tile, compute it, until there are none."""
    rows, (dy, kz, m, points, ci, co, halo, v_pitch, m_pitch, item, stored) = grid[2], grid[4:]
    to, to_n, to_c, to_z, to_y = out[:5]
    v, products = scratch, scratch + points * ci * v_pitch * item
    waste = products + points * co * m_pitch * item  # rows that nobody wants
    for p in range(points):
        tables[2, p, 0], tables[2, p, 1] = v + p * ci * v_pitch * item, v_pitch
        tables[3, p, 0], tables[3, p, 1] = products + p * co * m_pitch * item, m_pitch
    at_points, found, written = [tables[i].ctypes.data for i in range(2, 5)]
    now, later = 0, 1
    tile, k = _next(-1, kz, grid, source, len(blocks), counter)
    begun = 0
    if tile >= 0:
        _source_rows(tile, k, grid, source, blocks, zeros, tables[now])
    while tile >= 0:
        following, next_k = _next(tile, k, grid, source, len(blocks), counter)
        if following >= 0:
            _source_rows(following, next_k, grid, source, blocks, zeros, tables[later])
        volume, plane, row, block = _place(tile, grid, len(blocks))
        first, end = blocks[block]
        call(transforms[0], (at_points, tables[now].ctypes.data, 0, end - first + halo, 0, ci))
        for p in range(points):
            for part in range(code.shape[1]):
                if code[block, part, 0]:
                    call(code[block, part, begun], (products, v, code[block, part, 2 + k], 0, p, p + 1))
            if following >= 0:
                call(transforms[2], (0, tables[later].ctypes.data, 0, end - first + halo, ci * p // points,
                                     ci * (p + 1) // points))
        begun = 1
        if following != tile:
            for i in range(m):
                y = row + i * dy
                inside = y < rows
                tables[4, i, 0] = to + volume * to_n + plane * to_z + y * to_y + first * item if inside else waste
                tables[4, i, 1] = to_c // item if inside else 0
            call(transforms[1], (written, found, bias, end - first, 0, stored))
            begun = 0
        tile, k = following, next_k
        now, later = later, now


@njit(nogil=True, inline="always")
def _place(tile, grid, blocks):
    """Volume, plane, first row and block of a tile."""
    planes, rows, dy, m = grid[1], grid[2], grid[4], grid[6]
    tiles = (rows - 1) // (m * dy) + 1
    block, rest = tile % blocks, tile // blocks
    row, rest = rest % tiles, rest // tiles
    phase, rest = rest % dy, rest // dy
    return rest // planes, rest % planes, row * m * dy + phase, block


@njit(nogil=True, inline="always")
def _next(tile, k, grid, source, blocks, counter):
    """The tile and plane of taps after these, -1 when there are no more."""
    volumes, planes, rows, dz, dy, kz, m = grid[:7]
    held, before = source[5], source[7]
    total = volumes * planes * dy * ((rows - 1) // (m * dy) + 1) * blocks
    while True:
        k += 1
        if k >= kz:
            tile, k = take(counter), 0
        if tile >= total:
            return -1, 0
        _, plane, row, _ = _place(tile, grid, blocks)
        first, reached = plane - before, False
        for j in range(kz):
            reached = reached or (first + j * dz >= 0 and first + j * dz < held)
        z = first + k * dz
        if row < rows and ((z >= 0 and z < held) or (k == 0 and not reached)):  # zeros, where nothing reaches
            return tile, k


@njit(nogil=True, inline="always")
def _source_rows(tile, k, grid, source, blocks, zeros, table):
    """Write where the rows are that a tile needs of a plane of taps."""
    dz, dy, points, item = grid[3], grid[4], grid[7], grid[13]
    base, of_n, of_c, of_z, of_y, planes, rows, before_z, before_y = source
    volume, plane, row, block = _place(tile, grid, len(blocks))
    z = plane + k * dz - before_z
    start = base + volume * of_n + z * of_z + blocks[block, 0] * item
    for i in range(points):
        y = row + i * dy - before_y
        inside = y >= 0 and y < rows and z >= 0 and z < planes
        table[i, 0] = start + y * of_y if inside else zeros
        table[i, 1] = of_c // item if inside else 0

"""Convolutions with a quarter of the multiplications: tiles of the plane, computed at points along y and x.

A tile is my rows and mx columns of the output, as far apart as the taps; it takes (my + ky - 1) (mx + kx - 1)
multiplications for a pair of channels instead of my mx ky kx.  A task takes the tiles of a few rows and transforms the
input that they need (`znn.codegen.transforms.plane`): then at every point there is a matrix, channels by tiles.  These
are multiplied by the weights at that point (`points_forward` with a single tap), a block of output channels at a time,
which is transformed back while the first caches have it; bias and activation are part of that.
"""
import math
from dataclasses import dataclass, replace

import numba
import numpy as np
from numba import njit, prange

from znn.codegen.plan import PLAIN, Epilogue
from znn.codegen.rows import touch
from znn.codegen.transforms.plane import Lanes, from_points, to_points
from znn.loops.contraction import Access, row_major
from znn.loops.convolution import points_forward
from znn.loops.winograd import matrices
from znn.runtime import arena, default
from znn.runtime.database import follows_schedules
from znn.runtime.driver import call, take
from znn.runtime.kernel import address
from znn.runtime.request import Request
from znn.runtime.threads import parallel
from znn.runtime.winograd import record

SCRATCH = 1280 << 10  # bytes of input at points, to stay in the second cache
WIDEST = 8           # vectors of lanes that a row fills at most: its columns stand in a buffer on the stack
TOGETHER = 8         # output channels at least that are multiplied at all points before the next ones
TURNS = 12           # parts of the points' products, with rows of the output asked for in between
BEGIN, DOWN, ACROSS = 0.5, 30, 220
CHUNK = 64           # weights that are transformed together


@dataclass(frozen=True)
class Layout:
    """How a plane is cut into tasks, and where a task keeps what it has at the points.

    Attributes
    ----------
    pieces : ndarray, (pieces, 5)
        Parts of rows of tiles: first row and first column of the output, the column after the last, the first of the
        lanes in which its tiles are, how many vectors they fill.
    tasks : ndarray, (tasks + 1,)
        The first piece of each task, then how many pieces there are.
    lanes : int
        Of a task, whole vectors.
    together : int
        Output channels of a block.
    pitch : int
        Elements from channel to channel.
    steps : (int, int)
        Elements from point to point, of the input and of a block of the output.
    """

    pieces: np.ndarray
    tasks: np.ndarray
    lanes: int
    together: int
    pitch: int
    steps: tuple


class PlaneTiles:
    """A convolution in tiles of m = (my, mx) rows and columns, ready to run.

    Parameters
    ----------
    ci, co : int
    taps, dilation : (int, int, int)
    extent : (int, int)
        Rows and columns of the output.
    m : (int, int)
    dtype : numpy.dtype
    epilogue : Epilogue
    where : Target
    mirrored : bool
        Whether the weights are those of the convolution that this one is the gradient of: (ci, co, kz, ky, kx), taps
        in reverse order.
    """

    def __init__(self, ci, co, taps, dilation, extent, m, dtype, epilogue, where, mirrored=False):
        self.ci, self.co, self.taps, self.dilation, self.m, self.dtype = ci, co, taps, dilation, m, dtype
        (back_y, at_y, to_y), (back_x, at_x, to_x) = (matrices(n, t) for n, t in zip(m, taps[1:]))
        self.points = len(to_y), len(to_x)
        self.layout = plan = layout(ci, co, taps, dilation, extent, m, dtype, where)
        self._longest = int((plan.pieces[:, 2] - plan.pieces[:, 1]).max())
        self._weights_at = at_y.astype(dtype), at_x.astype(dtype)
        widest = plan.lanes // where.lanes(dtype)
        lanes = [Lanes(m[1], dilation[2], widest, plan.pitch, step) for step in plan.steps]
        self._transforms = (address(to_points, where, dtype, _rows(to_y), _rows(to_x), lanes[0]),
                            address(from_points, where, dtype, _rows(back_y.T), _rows(back_x.T), lanes[1], epilogue),
                            address(touch, where, dtype, m[0]))
        kinds = [[_kernel(request, e) for e in (PLAIN, Epilogue(accumulate=True))] for request in
                 _products(math.prod(self.points), ci, co, plan, dtype, where)]
        self._lay_out_weights(kinds, mirrored)

    def _lay_out_weights(self, kinds, mirrored):
        """Where the kernels find their weights: `_code` holds addresses of machine code, then offsets of weights.

        The packed weights of a block of output channels at a plane of taps are one section, all points one after the
        other; the first tap of a point's elements is in `_first`, -1 for none, and `_sections` has for each section
        where that begins there, how many there are, where in w that block and plane begin, and where the section does.
        """
        shape = (self.ci, self.co, *self.taps) if mirrored else (self.co, self.ci, *self.taps)
        steps = row_major(shape)
        (ci, co), sign = (steps[:2], -1) if mirrored else (steps[1::-1], 1)
        self.steps = sign * steps[3], sign * steps[4]
        start, kz = math.prod(self.taps) - 1 if mirrored else 0, self.taps[0]
        together, points = self.layout.together, math.prod(self.points)
        blocks = -(-self.co // together)
        firsts, at, offset, self._sections = [], 0, 0, []
        self._code = np.zeros((blocks, 2 + kz), np.int64)
        for (first, later), members in zip(kinds, (range(self.co // together), range(self.co // together, blocks))):
            source = first.packing.source.reshape(points, -1)[0]
            o, i = np.divmod(np.maximum(source, 0), self.ci)
            firsts.append(np.where(source < 0, -1, o * co + i * ci))
            line = arena.LINE // self.dtype.itemsize
            for block in members:
                self._code[block, :2] = first.address, later.address
                for z in range(kz):
                    base = start + block * together * co + z * sign * steps[2]
                    self._sections.append((at, len(source), base, offset))
                    self._code[block, 2 + z] = offset
                    offset += -(-points * len(source) // line) * line
            at += len(source)
        self._first, self._size = np.concatenate(firsts).astype(np.int32), offset

    def weights(self, w):
        """The weights at the points, all sections one after the other."""
        out = arena.empty((self._size,), w.dtype)
        chunks = np.array([(section, s) for section, (_, many, _, _) in enumerate(self._sections)
                           for s in range(0, many, CHUNK)])
        _weights_at_points(w.reshape(-1), chunks, np.array(self._sections), self._first, *self._weights_at, self.steps,
                           out)
        return out

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
        scratch = arena.empty(self.scratch_shape(), self.dtype)
        self.launch(out, source, self.weights(w), scratch, bias, start, extent, before)

    def scratch_shape(self):
        """Of what the threads at hand compute in, a row each."""
        of_input, of_block = (math.prod(self.points) * step for step in self.layout.steps)
        return numba.get_num_threads(), self.taps[0] * of_input + of_block + arena.pitch(self._longest, self.dtype)

    def launch(self, out, source, weights, scratch, bias=None, start=0, extent=None, before=(0, 0)):
        """`run` with what `weights` gave, in `scratch` (threads or more, scratch_shape()[1])."""
        threads, code, item = numba.get_num_threads(), self._code.copy(), self.dtype.itemsize
        code[:, 2:] = weights.ctypes.data + item * code[:, 2:]
        halo, plan = self.dilation[2] * (self.taps[2] - 1), self.layout
        zeros = np.zeros(self._longest + halo, self.dtype)
        tables, counter = np.zeros((threads, max(self.points[0], self.m[0]), 2), np.int64), np.zeros(1, np.int64)
        grid = (out.shape[0], *out.shape[2:4], *self.dilation[:2], self.taps[0], self.m[0], self.points[0],
                math.prod(self.points), self.ci, self.co, plan.together, *plan.steps, halo, item)
        _run(grid, record(source, start, extent or source.shape[2:4], before), record(out, 0, out.shape[2:4], (0, 0)),
             plan.pieces, plan.tasks, code, self._transforms, 0 if bias is None else bias.ctypes.data,
             zeros.ctypes.data, scratch.ctypes.data, scratch.strides[0], tables, counter)


def tiles_along(width, dilation, m):
    """How many tiles of m columns, `dilation` apart, so many columns make."""
    whole, rest = divmod(width, m * dilation)
    return whole * dilation + min(rest, dilation)


def layout(ci, co, taps, dilation, extent, m, dtype, where):
    """The `Layout` of a convolution; parameters are those of `PlaneTiles`."""
    native, points = where.lanes(dtype), math.prod(n + t - 1 for n, t in zip(m, taps[1:]))
    starts, unit = _starts(extent[0], dilation[1], m[0]), (dilation[2], m[1])
    held = points * ci * taps[0] * dtype.itemsize * native  # bytes of a vector of lanes
    least = max(1, dilation[2] // native)
    cuts = {v: _cut(starts, extent[1], unit, v * native, native)
            for v in range(least, max(least, min(SCRATCH // held, WIDEST)) + 1)}

    def cost(v):
        """Multiplications of vectors, and others that take the time of what is done beside them."""
        pieces, tasks = cuts[v]
        products = (len(tasks) - 1) * (v + BEGIN) * points * taps[0] * ci * co
        transforms = sum(DOWN * (-(-(end - first) // native) + 1) + ACROSS * n for _, first, end, _, n in pieces)
        return products + transforms * (taps[0] * ci + co)

    vectors = min(cuts, key=cost)
    at_once, _ = default.tile(co, vectors, where.registers)
    together = min(co, at_once * -(-TOGETHER // at_once))
    pitch = (vectors + 1) * native  # the last vector of a piece may be longer than the lanes
    steps = tuple(_odd_lines(c * pitch, dtype) for c in (ci, together))
    return Layout(*map(np.array, cuts[vectors]), vectors * native, together, pitch, steps)


def _cut(starts, width, unit, lanes, native):
    """The pieces and tasks of a `Layout`: rows of tiles one after the other, whole units, no piece below a vector."""
    (dilation, m), pieces, tasks, used = unit, [], [0], 0
    columns = dilation * m
    for row in starts.tolist():
        first = 0
        while first < width:
            end = min(width, first + (lanes - used) // dilation * columns)
            if width - end < native < width - first and end < width:  # what is left must be a piece too
                end = first + (width - native - first) // columns * columns
            if tiles_along(width - first, *unit) <= lanes - used:
                end = width
            if end - first < native and used:
                tasks.append(len(pieces))
                used = 0
                continue
            many = tiles_along(end - first, *unit)
            pieces.append((row, first, end, used, -(-many // native)))
            first, used = end, used + many
    return pieces, [*tasks, len(pieces)]


def _odd_lines(elements, dtype):
    """At least so many elements, in an odd number of cache lines: points then do not drive each other out."""
    line = arena.LINE // dtype.itemsize
    return (-(-elements // line) | 1) * line


def _starts(rows, dilation, m):
    """First row of each row of tiles, those of one phase one after the other."""
    return np.array([first for phase in range(min(dilation, rows)) for first in range(phase, rows, m * dilation)])


def _rows(matrix):
    return tuple(map(tuple, matrix.tolist()))


def _products(points, ci, co, plan, dtype, where):
    """What is asked for: products for the whole blocks of output channels, and for the last one if it is shorter."""
    found, pitch = [], plan.pitch
    for many in filter(None, (min(co, plan.together), co % plan.together if co > plan.together else 0)):
        c = points_forward(points, ci, many, 1, (0, plan.lanes), 1, pitch, pitch)
        v, m = (Access(a.name, (("p", step), *a.strides[1:])) for a, step in zip((c.a, c.out), plan.steps))
        found.append(Request(replace(c, a=v, out=m), default.RULES["spatial"], where, dtype, "before", task="p"))
    return found


def requests(ci, co, taps, dilation, shape, m, dtype, where):
    """What `PlaneTiles` asks for, and how often a run runs it on one thread: dict of `Request` to int.

    `shape` is (n, planes, rows, columns) of the output, the planes being those that all taps are used for.
    """
    plan = layout(ci, co, taps, dilation, shape[2:], m, dtype, where)
    runs = shape[0] * shape[1] * taps[0] * (len(plan.tasks) - 1)
    points = math.prod(n + t - 1 for n, t in zip(m, taps[1:]))
    times = co // plan.together, 1
    return {request: runs * many for request, many in zip(_products(points, ci, co, plan, dtype, where), times)}


@follows_schedules
def _kernel(request, epilogue):
    return replace(request, epilogue=epilogue).kernel()


@parallel
def _weights_at_points(w, chunks, sections, first, along_y, along_x, steps, out):
    (py, ky), (px, kx) = along_y.shape, along_x.shape
    for n in prange(len(chunks)):
        section, s = chunks[n]
        at, many, base, offset = sections[section]
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


@parallel
def _run(grid, source, out, pieces, tasks, code, transforms, bias, zeros, scratch, size, tables, counter):
    for thread in prange(len(tables)):
        _work(grid, source, out, pieces, tasks, code, transforms, bias, zeros, scratch + thread * size,
              tables[thread], counter)


@njit(nogil=True, cache=True)
def _work(grid, source, out, pieces, tasks, code, transforms, bias, zeros, scratch, table, counter):
    """What a thread does: take a few pieces of rows of tiles, compute them, until there are none."""
    volumes, planes, rows, dz, dy, kz, my, py, points, ci, co, together, v_step, m_step, halo, item = grid
    base, of_n, of_c, of_z, of_y, held, held_rows, before_z, before_y = source
    to, to_n, to_c, to_z, to_y = out[:5]
    of_plane = points * v_step * item
    v, products = scratch, scratch + kz * of_plane
    waste = products + points * m_step * item  # rows that nobody wants
    rows_at, each = table.ctypes.data, len(tasks) - 1
    task = take(counter, 1)
    while task < volumes * planes * each:
        mine = pieces[tasks[task % each]:tasks[task % each + 1]]
        volume, plane = task // each // planes, task // each % planes
        z, reached = plane - before_z, 0
        for k in range(kz):
            reached += int(0 <= z + k * dz < held) << k
        reached = max(reached, 1)  # zeros, where nothing reaches
        for k in range(kz):
            start, there = base + volume * of_n + (z + k * dz) * of_z, held_rows if 0 <= z + k * dz < held else 0
            for row, first, end, lane, vectors in mine if reached >> k & 1 else mine[:0]:
                _rows_to(table[:py], start + first * item, row - before_y, dy, there, of_y, of_c // item, zeros)
                call(transforms[0], (v + k * of_plane + lane * item, rows_at, end - first + halo, vectors, 0, ci))
        for block in range(len(code)):
            channel, begun = block * together, 0
            wide = min(together, co - channel)
            start = to + volume * to_n + channel * to_c + plane * to_z
            for k in range(kz):
                for turn in range(TURNS if reached >> k & 1 else 0):
                    call(code[block, begun], (products, v + k * of_plane, code[block, 2 + k], 0,
                                              points * turn // TURNS, points * (turn + 1) // TURNS))
                    for row, first, end, _, _ in mine[:0] if begun else mine:
                        _rows_to(table[:my], start + first * item, row, dy, rows, to_y, to_c // item, waste)
                        call(transforms[2], (0, rows_at, 0, end - first, wide * turn // TURNS,
                                             wide * (turn + 1) // TURNS))
                begun = begun or reached >> k & 1
            for row, first, end, lane, vectors in mine:
                _rows_to(table[:my], start + first * item, row, dy, rows, to_y, to_c // item, waste)
                call(transforms[1], (rows_at, products + lane * item, bias + channel * item, end - first, vectors,
                                     0, wide))
        task = take(counter, 1)


@njit(nogil=True, inline="always")
def _rows_to(table, start, y, step, rows, of_y, of_c, elsewhere):
    """Write where the rows y, y + step... of `rows` are, `elsewhere` for those that there are not."""
    for i in range(len(table)):
        inside = 0 <= y + i * step < rows
        table[i, 0] = start + (y + i * step) * of_y if inside else elsewhere
        table[i, 1] = of_c if inside else 0

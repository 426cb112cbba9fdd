"""Convolutions with a quarter of the multiplications: tiles of the plane, computed at points along y and x.

A tile is my rows and mx columns of the output, as far apart as the taps; it takes (my + ky - 1) (mx + kx - 1)
multiplications for a pair of channels instead of my mx ky kx.  A task takes some hundred tiles and transforms the input
that they need (`znn.codegen.transforms.plane`): then at every point there is a matrix, channels by tiles.  These are
multiplied by the weights at that point (`points_forward` with a single tap), a block of output channels at a time,
which is transformed back while caches have it; bias and activation are part of that.
"""
import math
from dataclasses import replace

import numba
import numpy as np
from numba import njit, prange

from znn.codegen.plan import PLAIN, Epilogue
from znn.codegen.rows import touch
from znn.codegen.transforms.plane import Lanes, from_points, to_points
from znn.loops.winograd import matrices
from znn.runtime import arena
from znn.runtime.database import follows_schedules
from znn.runtime.driver import call, take
from znn.runtime.kernel import address
from znn.runtime.threads import parallel
from znn.runtime.winograd import record
from znn.runtime.winograd_layout import layout, products
from znn.runtime.winograd_packed import PackedWeights

TURNS = 12  # parts of the points, with rows of the output asked for in between


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
        lanes = [Lanes(m[1], dilation[2], plan.lanes // where.lanes(dtype), plan.pitch, step) for step in plan.steps]
        self._transforms = (address(to_points, where, dtype, _rows(to_y), _rows(to_x), lanes[0]),
                            address(from_points, where, dtype, _rows(back_y.T), _rows(back_x.T), lanes[1], epilogue),
                            address(touch, where, dtype, m[0]))
        kinds = [[_kernel(request, e) for e in (PLAIN, Epilogue(accumulate=True))]
                 for request in products(math.prod(self.points), ci, co, plan, dtype, where)]
        self._packed = PackedWeights(at_y.astype(dtype), at_x.astype(dtype), ci, co, taps[0], plan.together,
                                     [first.packing for first, _ in kinds], mirrored)
        whole, blocks = co // plan.together, len(self._packed.offsets)
        self._kernels = np.array([[k.address for k in kinds[0 if b < whole else -1]] for b in range(blocks)])
        self._longest = int((plan.pieces[:, 2] - plan.pieces[:, 1]).max())
        self.weights = self._packed.at_points

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
        threads, item = numba.get_num_threads(), self.dtype.itemsize
        code = np.hstack([self._kernels, weights.ctypes.data + item * self._packed.offsets])
        halo, plan = self.dilation[2] * (self.taps[2] - 1), self.layout
        zeros = np.zeros(self._longest + halo, self.dtype)
        tables, counter = np.zeros((threads, max(self.points[0], self.m[0]), 2), np.int64), np.zeros(1, np.int64)
        grid = (out.shape[0], *out.shape[2:4], *self.dilation[:2], self.taps[0], self.m[0], self.points[0],
                math.prod(self.points), self.ci, self.co, plan.together, *plan.steps, halo, item)
        _run(grid, record(source, start, extent or source.shape[2:4], before), record(out, 0, out.shape[2:4], (0, 0)),
             plan.pieces, plan.tasks, code, self._transforms, 0 if bias is None else bias.ctypes.data,
             zeros.ctypes.data, scratch.ctypes.data, scratch.strides[0], tables, counter)


def _rows(matrix):
    return tuple(map(tuple, matrix.tolist()))


@follows_schedules
def _kernel(request, epilogue):
    return replace(request, epilogue=epilogue).kernel()


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
    task = take(counter)
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
        task = take(counter)


@njit(nogil=True, inline="always")
def _rows_to(table, start, y, step, rows, of_y, of_c, elsewhere):
    """Write where the rows y, y + step... of `rows` are, `elsewhere` for those that there are not."""
    for i in range(len(table)):
        inside = 0 <= y + i * step < rows
        table[i, 0] = start + (y + i * step) * of_y if inside else elsewhere
        table[i, 1] = of_c if inside else 0

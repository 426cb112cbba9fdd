"""Tiles of the plane transformed to points and back, as machine code: along y as whole rows, along x by shuffles.

The tiles of a row are the lanes.  `unit` neighbouring columns are of as many tiles, for taps are that far apart; then
come those of the next `mx` units, until the row ends.  With mx = 2 and a unit of 3::

    column  0 1 2 3 4 5 6 7 8 9 10 11
    lane    0 1 2 0 1 2 3 4 5 3  4  5

At each point there is a row of lanes for every channel, `pitch` elements from channel to channel and `step` from point
to point; points count along x first.  Between the two directions a channel's rows stand in a buffer on the stack.
"""
from dataclasses import dataclass

import numpy as np

from znn.codegen.emit import I64, Emitter
from znn.codegen.plan import PLAIN
from znn.codegen.rows import _combined as combined
from znn.codegen.transforms.shuffles import next_unit, put_back, taken_apart

AHEAD = 2  # channels that rows are asked for before they are read


@dataclass(frozen=True)
class Lanes:
    """How the tiles of a row lie in memory.

    Attributes
    ----------
    mx : int
        Columns of the output that a tile has.
    unit : int
        Divides the lanes of a vector, or is a multiple of them.
    widest : int
        The most vectors of lanes that a row fills.
    pitch, step : int
    """

    mx: int
    unit: int
    widest: int
    pitch: int
    step: int


def to_points(target, dtype, along_y, along_x, lanes):
    """The llvmlite module of ``out[p, q] = sum_ij along_y[p][i] along_x[q][j] in[i, j]``.

    The function is ``kernel(out, in, columns, vectors, first, last)`` for channels `first` to `last`: `in` is a table
    of rows as those of `znn.codegen.rows`, `columns` how many of each count, no fewer than a vector; `vectors` of lanes
    are written.  What tiles have beyond these columns is zero.

    Parameters
    ----------
    target : Target
    dtype : numpy.dtype
    along_y, along_x : sequences of sequences of float
        Square.
    lanes : Lanes
    """
    along_y, along_x = np.array(along_y), np.array(along_x)
    e = Emitter(target, dtype, "ptiiii")
    out, source, columns, vectors, first, last = e.fn.args
    buffer = _Buffer(e, lanes, len(along_y), len(along_x))
    buffer.clear(columns)
    rows = _rows(e, source, len(along_y))

    def channel(c):
        here, there = _in_channel(e, rows, c), e.at(out, e.mul(c, lanes.pitch))
        later = _in_channel(e, rows, e.b.add(c, I64(AHEAD)))

        def down(x):
            for p in later:
                e.prefetch(e.at(p, x), level=1)
            buffer.write(combined(e, along_y, [e.load(e.at(p, x)) for p in here]), x)

        _along(e, columns, down)

        def across(j):
            for y in range(len(along_y)):
                for q, v in enumerate(combined(e, along_x, buffer.tiles(y, j))):
                    e.store(v, e.at(there, e.mul(j, e.lanes), (y * len(along_x) + q) * lanes.step))
            return []

        e.loop(vectors, [], across)
        return []

    e.loop(e.b.sub(last, first), [], channel, first)
    e.b.ret_void()
    return e.module


def from_points(target, dtype, along_y, along_x, lanes, epilogue=PLAIN):
    """The llvmlite module of ``out[i, j] = epilogue(sum_pq along_y[i][p] along_x[j][q] in[p, q])``.

    The function is ``kernel(out, in, bias, columns, vectors, first, last)`` for channels `first` to `last`: `out` is a
    table of rows as those of `znn.codegen.rows`, `columns` how many of each are written, no fewer than a vector, and
    `vectors` of lanes are read.  Parameters are those of `to_points`, matrices with a column for each point.
    """
    along_y, along_x = np.array(along_y), np.array(along_x)
    (my, py), px = along_y.shape, along_x.shape[1]
    e = Emitter(target, dtype, "tppiiii")
    out, source, bias, columns, vectors, first, last = e.fn.args
    buffer, rows = _Buffer(e, lanes, py, px), _rows(e, out, my)

    def channel(c):
        here, there = e.at(source, e.mul(c, lanes.pitch)), _in_channel(e, rows, c)
        added = e.broadcast(e.at(bias, c)) if epilogue.bias else None

        def across(j):
            for y in range(py):
                points = [e.load(e.at(here, e.mul(j, e.lanes), (y * px + q) * lanes.step)) for q in range(px)]
                buffer.write_tiles(combined(e, along_x, points), y, j)
            return []

        e.loop(vectors, [], across)

        def values(x):
            found = combined(e, along_y, buffer.read(x))
            if epilogue.accumulate:
                found = [e.b.fadd(v, e.load(e.at(p, x))) for v, p in zip(found, there)]
            if epilogue.bias:
                found = [e.b.fadd(v, added) for v in found]
            return [e.activation(v, epilogue.activation) for v in found]

        def write(x, found=None):
            for v, p in zip(found or values(x), there):
                e.store(v, e.at(p, x))

        # The last vector ends with the row, over some lanes of the one before it: what it is added to is read first.
        end = values(e.b.sub(columns, I64(e.lanes))) if epilogue.accumulate else None
        _along(e, columns, write, end)
        return []

    e.loop(e.b.sub(last, first), [], channel, first)
    e.b.ret_void()
    return e.module


class _Buffer:
    """The rows of one channel, on the stack: `rows` of them, long enough for tiles of `points` columns each."""

    def __init__(self, e, lanes, rows, points):
        self.e, self.lanes, self.rows, self.points = e, lanes, rows, points
        tiles = lanes.widest * e.lanes * lanes.mx + max(0, lanes.unit - e.lanes) * lanes.mx
        self.held = -(-(tiles + points * lanes.unit) // e.lanes) * e.lanes + e.lanes
        self.start = e.block(rows * self.held + e.lanes)

    def clear(self, columns):
        """Zeros beyond so many columns."""
        e = self.e

        def vector(i):
            for y in range(self.rows):  # over the end of a row, before the next one is written
                e.store(e.zero(), e.at(self.start, columns, e.mul(i, e.lanes), y * self.held))
            return []

        rest = e.b.add(e.b.sub(I64(self.held), columns), I64(e.lanes - 1))
        e.loop(e.b.sdiv(rest, I64(e.lanes)), [], vector)

    def write(self, vectors, x):
        """A vector for each row at column x."""
        for y, v in enumerate(vectors):
            self.e.store(v, self.e.at(self.start, x, y * self.held))

    def read(self, x):
        """A vector of each row at column x."""
        return [self.e.load(self.e.at(self.start, x, y * self.held)) for y in range(self.rows)]

    def tiles(self, y, j):
        """Of row y the columns of the tiles of vector j, in order: a vector for each of a tile's points."""
        e, mx, unit = self.e, self.lanes.mx, self.lanes.unit
        start = self._first(y, j)
        if unit >= e.lanes:
            return [e.load(e.at(start, i * unit)) for i in range(self.points)]
        found = taken_apart(e, [e.load(e.at(start, i * e.lanes)) for i in range(mx)], unit)
        last = (e.lanes // unit - 1) * mx  # units before the last tile
        for i in range(mx, self.points):
            found.append(next_unit(e, found[i - mx], e.load(e.at(start, (last + i) * unit)), unit))
        return found

    def write_tiles(self, vectors, y, j):
        """Into row y the columns of the tiles of vector j, a vector for each column of a tile."""
        e, start = self.e, self._first(y, j)
        if self.lanes.unit >= e.lanes:
            for i, v in enumerate(vectors):
                e.store(v, e.at(start, i * self.lanes.unit))
            return
        for i, v in enumerate(put_back(e, vectors, self.lanes.unit)):
            e.store(v, e.at(start, i * e.lanes))

    def _first(self, y, j):
        """The first column of the tiles of vector j."""
        e, mx, unit = self.e, self.lanes.mx, self.lanes.unit
        if unit <= e.lanes:
            return e.at(self.start, e.mul(j, e.lanes * mx), y * self.held)
        many = I64(unit // e.lanes)  # vectors of a unit
        return e.at(self.start, e.mul(e.b.sdiv(j, many), unit * mx), e.mul(e.b.srem(j, many), e.lanes), y * self.held)


def _rows(e, table, count):
    """Pointer to channel 0 of each row of a table, and the step to the next channel."""
    return [(e.pointer(e.entry(table, 2 * i)), e.entry(table, 2 * i + 1)) for i in range(count)]


def _in_channel(e, rows, c):
    return [e.at(p, e.b.mul(c, step)) for p, step in rows]


def _along(e, columns, at, *last):
    """Call ``at(x)`` for the vectors of a row, at last ``at(x, *last)`` for one that ends with the row."""
    def vector(i):
        at(e.mul(i, e.lanes))
        return []

    e.loop(e.b.sdiv(e.b.sub(columns, I64(1)), I64(e.lanes)), [], vector)
    at(e.b.sub(columns, I64(e.lanes)), *last)

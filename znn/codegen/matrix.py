"""A convolution of narrow numbers on a matrix unit: registers of 16 rows of 64 bytes, multiplied as matrices (AMX).

With 16 neighbouring voxels of a row as columns, a volume of elements (`znn.codegen.group`) is laid out as such a unit
wants its second factor: one row for each element, the numbers that are summed together side by side::

    out[16 outputs, 16 voxels]  +=  w[16 outputs, 16 elements]  *  x[16 elements, 16 voxels]

for every tap and every 16 elements of a voxel.  Two times two such products share what they read.  Tiles at the end of
a range begin earlier, so that they end with it: what they compute again comes out the same, and elements that a step
before has summed have weights of zero.  The function is called as those of `znn.codegen.nest`, a task is a row of the
output; registers belong to it from its first instruction to its last.
"""
import math
from dataclasses import dataclass

import numpy as np
from llvmlite import ir

from znn.codegen import group as groups
from znn.codegen import integers
from znn.codegen.emit import I32, I64, Emitter
from znn.codegen.plan import PLAIN

SIDE = 16                                       # rows of a register, and words of one
SUMS, LEFT, RIGHT = (0, 1, 2, 3), (4, 5), (6, 7)  # registers of a block
WORD, LINE = 4, 64                              # bytes
I8 = ir.IntType(8)


@dataclass(frozen=True)
class Tiling:
    """How outputs and elements of a convolution are shared among tiles, about equally.

    Attributes
    ----------
    elements, outputs : int
        Of a voxel of the input, and channels of the output.
    taps : (int, int, int)
    """

    elements: int
    outputs: int
    taps: tuple

    @property
    def depth(self):
        """Elements that a step sums."""
        return -(-self.elements // -(-self.elements // SIDE))

    @property
    def height(self):
        """Outputs of a tile; where there are several, they are stored four at a time."""
        many = -(-self.outputs // SIDE)
        return self.outputs if many == 1 else -(-self.outputs // (4 * many)) * 4

    @property
    def steps(self):
        """First element of every step."""
        return _starts(self.elements, self.depth)

    @property
    def tops(self):
        """First output of every tile."""
        return _starts(self.outputs, self.height)

    def packed(self, w):
        """Weights, elements (out, elements, kz, ky, kx), as the kernel reads them: a line for each output of a tile.

        Returns
        -------
        ndarray of uint32, (tiles, kz, ky, kx, steps, height, 16)
        """
        out = np.zeros((len(self.tops), *self.taps, len(self.steps), self.height, SIDE), np.uint32)
        for tile, top in zip(out, self.tops):
            for s, first in enumerate(self.steps):
                summed = s * self.depth - first
                part = w[top:top + self.height, first + summed:first + self.depth]
                tile[..., s, :, summed:self.depth] = part.transpose(2, 3, 4, 0, 1)
        return out


def _starts(extent, size):
    return [min(i, extent - size) for i in range(0, extent, size)]


def supports(target, group):
    """Whether the processor at hand has such a unit for numbers of a group."""
    return target.instruction(f"multiply {group.name}", SIDE) is not None


def convolution(target, group, x_shape, outputs, taps, dilation, epilogue):
    """The llvmlite module of ``out[n, co, p] = epilogue(sum_{ci, k} w[co, ci, k] x[n, ci, p + dilation k])``.

    Parameters
    ----------
    target : Target
        For which `supports` holds.
    group : Group
    x_shape : (n, elements, z, y, x)
    outputs : int
        A multiple of the numbers of an element that is stored.
    taps, dilation : (int, int, int)
    epilogue : Epilogue
        It adds to nothing; factors of integers follow the biases.
    """
    return _Convolution(target, group, x_shape, outputs, taps, dilation, epilogue).module()


class _Convolution:
    def __init__(self, target, group, x_shape, outputs, taps, dilation, epilogue):
        if epilogue.accumulate:
            raise ValueError("tiles overlap: a convolution on a matrix unit cannot add to what is there")
        self.e = Emitter(target, group, "ppppii", SIDE)
        self.group, self.epilogue, self.dilation = group, epilogue, dilation
        self.tiling, self.x_shape = Tiling(x_shape[1], outputs, tuple(taps)), x_shape
        self.extent = [n - d * (k - 1) for n, k, d in zip(x_shape[2:], taps, dilation)]
        self.width = min(SIDE, self.extent[2])  # columns of a tile
        self.scaled = group.integers and epilogue != PLAIN

    def module(self):
        e = self.e
        self.out, self.x, self.w, self.bias, first, last = e.fn.args
        self.sums = [e.block(SIDE * SIDE) for _ in SUMS]
        self._configure()
        e.loop(e.b.sub(last, first), [], self._row, first)
        self._call("release registers")
        e.b.ret_void()
        return e.module

    # --- loops ----------------------------------------------------------------------------------------------
    def _row(self, task):
        """A row of the output: all outputs, two tiles of them at a time."""
        e, (z, y, x) = self.e, self.extent
        plane, line = e.b.sdiv(task, I64(y)), e.b.srem(task, I64(y))
        volume, section = e.b.sdiv(plane, I64(z)), e.b.srem(plane, I64(z))
        _, elements, *_, rows, pitch = self.x_shape
        self.step = math.prod(self.x_shape[2:])  # from an element of a voxel to the next
        source = e.b.add(e.mul(volume, elements * self.step), e.mul(section, rows * pitch))
        self.source = e.at(self.x, e.b.add(source, e.mul(line, pitch)))
        stored = groups.elements(self.epilogue.stores, self.tiling.outputs)
        goal = e.b.add(e.mul(volume, stored * z * y * x), e.mul(e.b.add(e.mul(section, y), line), x))
        self.goal = e.at(self.out, goal)
        wide = len(SUMS) // len(LEFT)
        full, rest = divmod(-(-x // SIDE), wide)
        if full:
            e.loop(I64(full), [], lambda i: self._columns(e.mul(i, wide * SIDE), wide))
        if rest:
            self._columns(I64(full * wide * SIDE), rest)
        return []

    def _columns(self, column, wide):
        """`wide` tiles of columns, which caches hold meanwhile: all outputs, two tiles of them at a time."""
        pairs, odd = divmod(len(self.tiling.tops), len(LEFT))
        if pairs:
            self.e.loop(I64(pairs), [], lambda i: self._block(self.e.mul(i, len(LEFT)), len(LEFT), column, wide))
        if odd:
            self._block(I64(pairs * len(LEFT)), 1, column, wide)
        return []

    def _block(self, tile, high, column, wide):
        e, (kz, ky, kx), t = self.e, self.tiling.taps, self.tiling
        dz, dy, dx = self.dilation
        *_, rows, pitch = self.x_shape
        columns = [e.least(e.b.add(column, I64(j * SIDE)), I64(self.extent[2] - self.width)) for j in range(wide)]
        block = len(t.steps) * t.height * SIDE  # weights of a tap
        weights = e.at(self.w, e.mul(tile, kz * ky * kx * block))
        for i in range(high * wide):
            self._call("zero register", SUMS[i])

        def taps(z, y):
            w = e.at(weights, e.mul(e.b.add(e.mul(z, ky), y), kx * block))
            x = e.at(self.source, e.b.add(e.mul(z, dz * rows * pitch), e.mul(y, dy * pitch)))
            for tap in range(kx):
                for s, first in enumerate(t.steps):
                    self._products(high, e.at(w, tap * block + s * t.height * SIDE), kz * ky * kx * block,
                                   [e.at(x, c, tap * dx + first * self.step) for c in columns])
            return []

        e.loop(I64(kz), [], lambda z: e.loop(I64(ky), [], lambda y: taps(z, y)))
        for i in range(high):
            top = e.least(e.mul(e.b.add(tile, I64(i)), t.height), I64(t.outputs - t.height))
            for j, c in enumerate(columns):
                self._store(i * wide + j, top, c)
        return []

    def _products(self, high, w, tile, sources):
        """One step of all sums of a block; weights of the next tile are `tile` elements further."""
        wide = len(sources)
        for i in range(high):
            self._call("load register", LEFT[i], self._bytes(self.e.at(w, i * tile)), I64(LINE))
        for j, x in enumerate(sources):
            right = RIGHT[j % len(RIGHT)]
            self._call("load register", right, self._bytes(x), I64(self.step * WORD))
            for i in range(high):
                self._call(f"multiply {self.group.name}", SUMS[i * wide + j], LEFT[i], right)

    def _store(self, which, top, column):
        """The sums of a tile, finished, where they belong."""
        e, epilogue, sums = self.e, self.epilogue, self.sums[which]
        self._call("store register", SUMS[which], self._bytes(sums), I64(LINE))
        count = epilogue.stores.count if epilogue.stores else 1
        size, goal = math.prod(self.extent), e.at(self.goal, column)
        top = e.b.sdiv(top, I64(count)) if count > 1 else top

        def stored(i):
            values = []
            for j in range(count):
                output = e.b.add(e.mul(e.b.add(top, i), count), I64(j))
                v = e.load(e.at(sums, e.mul(i, count * SIDE), j * SIDE))
                if self.scaled:
                    v = integers.real(e, v)
                    if epilogue.bias:
                        v = e.b.fmul(v, e.broadcast(e.at(self.bias, output, self.tiling.outputs)))
                if epilogue.bias:
                    v = e.b.fadd(v, e.broadcast(e.at(self.bias, output)))
                values.append(groups.finished(e, epilogue, v))
            v = groups.joined(e, epilogue.stores, values) if epilogue.stores else values[0]
            e.store(v, e.at(goal, e.mul(e.b.add(top, i), size)), e.prefix(self.width))
            return []

        e.loop(I64(self.tiling.height // count), [], stored)

    # --- the unit -------------------------------------------------------------------------------------------
    def _configure(self):
        """Rows of the registers, and bytes of their rows: palette 1 of the processor's manual."""
        e, t = self.e, self.tiling
        bytes_, rows = np.zeros(16, np.uint16), np.zeros(16, np.uint8)
        for registers, height, words in ((SUMS, t.height, self.width), (LEFT, t.height, t.depth),
                                         (RIGHT, t.depth, self.width)):
            bytes_[list(registers)], rows[list(registers)] = WORD * words, height
        table = np.concatenate([np.uint8([1]), np.zeros(15, np.uint8), bytes_.view(np.uint8), rows])
        kind = ir.VectorType(I32, LINE // WORD)
        where = e.block(LINE // WORD)
        words = ir.Constant(kind, [int(v) for v in table.view("<u4")])
        e.b.store(words, e.b.bitcast(where, kind.as_pointer()), align=4)
        self._call("configure registers", self._bytes(where))

    def _bytes(self, pointer):
        return self.e.b.bitcast(pointer, I8.as_pointer())

    def _call(self, name, *operands):
        operands = [I8(o) if isinstance(o, int) else o for o in operands]
        f = self.e.intrinsic(self.e.target.instruction(name, SIDE), ir.VoidType(), [o.type for o in operands])
        self.e.b.call(f, operands)

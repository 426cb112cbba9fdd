"""A convolution of narrow numbers on a matrix unit: registers of 16 rows of 64 bytes, multiplied as matrices (AMX).

With 16 neighbouring voxels of a row as columns, a volume of elements (`znn.codegen.group`) is laid out as such a unit
wants its second factor: one row for each element, the numbers that are summed together side by side::

    out[16 outputs, 16 voxels]  +=  w[16 outputs, 16 elements]  *  x[16 elements, 16 voxels]

for every tap and every 16 elements of a voxel.  Two or three times two such products share what they read; three where
tiles of outputs are odd in number, as a product waits for the one before it in the same sum.  Rows of x lie a plane
apart, which no processor foresees, so a line of taps asks for those of the next one.  Tiles at the end of a range
begin earlier, so that they end with it (`znn.codegen.matrix_tiles`): what they compute again comes out the same.  The
function is called as those of `znn.codegen.nest`, a task is a row of the output; registers belong to it from its first
instruction to its last.
"""
import math

import numpy as np
from llvmlite import ir

from znn.codegen import group as groups
from znn.codegen import integers
from znn.codegen.emit import I32, I64, Emitter
from znn.codegen.matrix_tiles import SIDE, Tiling
from znn.codegen.plan import PLAIN

WIDE, REGISTERS = 2, 8  # tiles of columns of a block, registers that there are
WORD, LINE = 4, 64      # bytes
I8 = ir.IntType(8)


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
        It adds to nothing; factors of integers follow the biases, then come the weights of what it mixes, as
        `Tiling.mixing` lays them out, and a bias for each such sum.
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
        sums = self.tiling.high * WIDE  # the first registers
        factors = min((REGISTERS - sums) // 2, 2)
        self.left, self.right = range(sums, sums + factors), range(sums + factors, sums + 2 * factors)

    def module(self):
        e = self.e
        self.out, self.x, self.w, self.bias, first, last = e.fn.args
        self.sums = [e.block(SIDE * SIDE) for _ in range(self.left[0])]
        self.mixed = [[e.block(SIDE) for _ in range(self.epilogue.mixes)] for _ in range(WIDE)]
        self.mixing = e.at(self.bias, (self.epilogue.bias + (self.scaled and self.epilogue.bias)) * self.tiling.outputs)
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
        stored = self.epilogue.mixes or groups.elements(self.epilogue.stores, self.tiling.outputs)
        goal = e.b.add(e.mul(volume, stored * z * y * x), e.mul(e.b.add(e.mul(section, y), line), x))
        self.goal = e.at(self.out, goal)
        full, rest = divmod(-(-x // SIDE), WIDE)
        if full:
            e.loop(I64(full), [], lambda i: self._columns(e.mul(i, WIDE * SIDE), WIDE))
        if rest:
            self._columns(I64(full * WIDE * SIDE), rest)
        return []

    def _columns(self, column, wide):
        """`wide` tiles of columns, which caches hold meanwhile: all outputs."""
        e, t, mixes = self.e, self.tiling, self.epilogue.mixes
        columns = [e.least(e.b.add(column, I64(j * SIDE)), I64(self.extent[2] - self.width)) for j in range(wide)]
        biases = e.at(self.mixing, len(t.tops) * t.height * mixes)
        for _, held in zip(columns, self.mixed):
            for m, where in enumerate(held):
                e.store(e.broadcast(e.at(biases, m)), where)
        e.loop(I64(len(t.tops) // t.high), [], lambda i: self._block(e.mul(i, t.high), columns))
        for column, held in zip(columns, self.mixed):
            for m, where in enumerate(held):
                e.store(e.load(where), e.at(self.goal, column, m * math.prod(self.extent)), e.prefix(self.width))
        return []

    def _block(self, tile, columns):
        e, (kz, ky, kx), t = self.e, self.tiling.taps, self.tiling
        lines, line = kz * ky, kx * len(t.steps) * t.height * SIDE  # lines of taps, and weights of one
        tops = [e.least(e.mul(e.b.add(tile, I64(i)), t.height), I64(t.outputs - t.height)) for i in range(t.high)]
        for register in range(t.high * len(columns)):
            self._call("zero register", register)
        if not self.epilogue.mixes:
            for top in tops:
                self._await(top, columns)
        weights = e.at(self.w, e.mul(tile, lines * line))

        def taps(number):
            following = e.b.srem(e.b.add(number, I64(1)), I64(lines))
            self._steps(e.at(weights, e.mul(number, line)), lines * line, self._line(number), self._line(following),
                        columns)
            return []

        e.loop(I64(lines), [], taps)
        for i, top in enumerate(tops):
            for j, column in enumerate(columns):
                sums = self.sums[i * len(columns) + j]
                self._call("store register", i * len(columns) + j, self._bytes(sums), I64(LINE))
                if self.epilogue.mixes:
                    self._mix(sums, top, e.b.add(tile, I64(i)), self.mixed[j])
                else:
                    self._store(sums, top, column)
        return []

    def _line(self, number):
        """Where a line of taps begins in x."""
        e, ky, (dz, dy, _) = self.e, self.tiling.taps[1], self.dilation
        *_, rows, pitch = self.x_shape
        z, y = e.b.sdiv(number, I64(ky)), e.b.srem(number, I64(ky))
        return e.at(self.source, e.b.add(e.mul(z, dz * rows * pitch), e.mul(y, dy * pitch)))

    def _steps(self, w, tile, x, following, columns):
        """All products of a line of taps; weights of the next tile are `tile` elements further."""
        e, t, kx, dx = self.e, self.tiling, self.tiling.taps[2], self.dilation[2]
        reach = dx * (kx - 1) + SIDE * (len(columns) - 1) + self.width
        ahead = [e.at(following, columns[0], element * self.step + voxel)
                 for element in range(t.elements) for voxel in range(0, reach + SIDE - 1, SIDE)]
        share = -(-len(ahead) // (kx * len(t.steps)))
        for tap in range(kx):
            for s, first in enumerate(t.steps):
                ahead, asked = ahead[share:], ahead[:share]
                for where in asked:
                    e.prefetch(where, 1)
                self._products(e.at(w, (tap * len(t.steps) + s) * t.height * SIDE), tile,
                               [e.at(x, c, tap * dx + first * self.step) for c in columns])

    def _products(self, w, tile, sources):
        """One step of all sums of a block, to and fro through the weights: a column begins with the last one's."""
        e, high, held = self.e, self.tiling.high, {}
        for j, x in enumerate(sources):
            right = self.right[j % len(self.right)]
            self._call("load register", right, self._bytes(x), I64(self.step * WORD))
            for i in range(high) if j % 2 == 0 else reversed(range(high)):
                left = self.left[i % len(self.left)]
                if held.get(left) != i:
                    self._call("load register", left, self._bytes(e.at(w, i * tile)), I64(LINE))
                    held[left] = i
                self._call(f"multiply {self.group.name}", i * len(sources) + j, left, right)

    def _await(self, top, columns):
        """Ask for the lines that a tile of outputs is going to be stored in."""
        e, stores = self.e, self.epilogue.stores
        first = e.b.sdiv(top, I64(stores.count)) if stores else top
        for i in range(groups.elements(stores, self.tiling.height)):
            row = e.at(self.goal, e.mul(e.b.add(first, I64(i)), math.prod(self.extent)))
            for column in columns:
                e.prefetch(e.at(row, column), 1, write=True)

    def _store(self, sums, top, column):
        """The sums of a tile, finished, where they belong."""
        e, stores = self.e, self.epilogue.stores
        count = stores.count if stores else 1
        size, goal = math.prod(self.extent), e.at(self.goal, column)
        first = e.b.sdiv(top, I64(count)) if stores else top

        def stored(i):
            values = [self._finished(sums, top, e.b.add(e.mul(i, count), I64(j))) for j in range(count)]
            v = groups.joined(e, stores, values) if stores else values[0]
            e.store(v, e.at(goal, e.mul(e.b.add(first, i), size)), e.prefix(self.width))
            return []

        e.loop(I64(self.tiling.height // count), [], stored)

    def _mix(self, sums, top, tile, held):
        """Add the sums of a tile, finished and weighted, to those over all outputs."""
        e, height, mixes = self.e, self.tiling.height, self.epilogue.mixes
        weights = e.at(self.mixing, e.mul(tile, height * mixes))

        def added(i, *totals):
            v = self._finished(sums, top, i)
            return [e.fma(v, e.broadcast(e.at(weights, e.mul(i, mixes), m)), t) for m, t in enumerate(totals)]

        for v, where in zip(e.loop(I64(height), [e.load(where) for where in held], added), held):
            e.store(v, where)

    def _finished(self, sums, top, i):
        """Row i of the sums of a tile, a vector of float32 numbers to which everything has been done."""
        e, bias = self.e, self.epilogue.bias
        v, output = e.load(e.at(sums, e.mul(i, SIDE))), e.b.add(top, i)
        if self.scaled:
            v = integers.real(e, v)
            if bias:
                v = e.b.fmul(v, e.broadcast(e.at(self.bias, output, self.tiling.outputs)))
        if bias:
            v = e.b.fadd(v, e.broadcast(e.at(self.bias, output)))
        return groups.finished(e, self.epilogue, v)

    # --- the unit -------------------------------------------------------------------------------------------
    def _configure(self):
        """Rows of the registers, and bytes of their rows: palette 1 of the processor's manual."""
        e, t = self.e, self.tiling
        bytes_, rows = np.zeros(16, np.uint16), np.zeros(16, np.uint8)
        for registers, height, words in ((range(self.left[0]), t.height, self.width), (self.left, t.height, t.depth),
                                         (self.right, t.depth, self.width)):
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

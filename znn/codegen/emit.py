"""A small vocabulary for vector kernels as LLVM IR: gathering and scattering lanes, arithmetic, counted loops."""
import math

from llvmlite import ir

I1, I32, I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)


class Emitter:
    """One kernel under construction: `fn(*pointers and i64s) -> void`, vectors of `lanes` elements of `dtype`.

    Parameters
    ----------
    target : Target
    dtype : numpy.dtype or Group
        float32 or float64; the elements of groups travel as float32, whose bits nothing looks at.
    signature : str
        Argument kinds, one letter each: "p" pointer to elements, "i" int64, "t" pointer to a table of int64.
    lanes : int, optional
        Elements of a vector, the target's own unless given.
    """

    def __init__(self, target, dtype, signature, lanes=None):
        self.target, self.size, self.lanes = target, dtype.itemsize, lanes or target.lanes(dtype)
        self.scalar = {4: ir.FloatType(), 8: ir.DoubleType()}[dtype.itemsize]
        self.vector = ir.VectorType(self.scalar, self.lanes)
        self._suffix = f"v{self.lanes}f{8 * self.size}"
        kinds = {"p": self.scalar.as_pointer(), "i": I64, "t": I64.as_pointer()}
        self.module = ir.Module()
        self.fn = ir.Function(self.module, ir.FunctionType(ir.VoidType(), [kinds[k] for k in signature]), "kernel")
        self.b = ir.IRBuilder(self.fn.append_basic_block("entry"))
        self._masks = ir.VectorType(I1, self.lanes)

    # --- addresses and memory -------------------------------------------------------------------------------
    def at(self, pointer, *offsets):
        """pointer + the sum of the offsets, in elements; offsets are ints or i64 values."""
        for o in offsets:
            if not (isinstance(o, int) and o == 0):
                pointer = self.b.gep(pointer, [I64(o) if isinstance(o, int) else o])
        return pointer

    def entry(self, table, index):
        """The int64 at a constant index of a table."""
        return self.b.load(self.b.gep(table, [I64(index)]))

    def pointer(self, address):
        """An i64 as pointer to elements."""
        return self.b.inttoptr(address, self.scalar.as_pointer())

    def block(self, elements):
        """A pointer to that many elements on the stack, aligned to a cache line."""
        memory = self.b.alloca(self.scalar, I64(elements))
        memory.align = 64
        return memory

    def mul(self, value, factor):
        """An i64 value times a Python int."""
        return self.b.mul(value, I64(factor))

    def load(self, pointer, mask=None):
        """A vector from an unaligned address; lanes outside the mask read as zero and are not touched."""
        where = self.b.bitcast(pointer, self.vector.as_pointer())
        if mask is None:
            return self.b.load(where, align=self.size)
        f = self.intrinsic(f"llvm.masked.load.{self._suffix}.p0", self.vector,
                            [self.vector.as_pointer(), I32, self._masks, self.vector])
        return self.b.call(f, [where, I32(self.size), mask, self.zero()])

    def store(self, value, pointer, mask=None):
        """A vector to an unaligned address; lanes outside the mask are left alone."""
        where = self.b.bitcast(pointer, self.vector.as_pointer())
        if mask is None:
            self.b.store(value, where, align=self.size)
        else:
            f = self.intrinsic(f"llvm.masked.store.{self._suffix}.p0", ir.VoidType(),
                                [self.vector, self.vector.as_pointer(), I32, self._masks])
            self.b.call(f, [value, where, I32(self.size), mask])

    def prefetch(self, pointer, level=2, write=False):
        """Ask the first or second cache for the line of an address, which need not exist, to read or to write it."""
        where = self.b.bitcast(pointer, ir.IntType(8).as_pointer())
        f = self.intrinsic("llvm.prefetch.p0", ir.VoidType(), [where.type, I32, I32, I32])
        self.b.call(f, [where, I32(int(write)), I32(4 - level), I32(1)])  # the last: data

    def forget_loads(self):
        """From here on LLVM loads again what it has loaded before."""
        self.b.asm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", [], True)

    def gather(self, pointer, offsets):
        """A vector whose lane i is the element at offset ``offsets[i]``, zero where that is None.

        Equal offsets become a broadcast, neighbours a load, a repeated block one load and a shuffle.
        """
        held = [o for o in offsets if o is not None]
        if not held:
            return self.zero()
        if offsets == held[:1] * self.lanes:
            return self.broadcast(self.at(pointer, held[0]))
        block = _repeated(offsets)
        if block < self.lanes:
            return self._repeat(pointer, offsets[:block])
        if _contiguous(held) and offsets[:len(held)] == held:
            return self._load_first(self.at(pointer, held[0]), len(held))
        v = self.zero()
        for i, o in enumerate(offsets):
            if o is not None:
                v = self.b.insert_element(v, self.b.load(self.at(pointer, o)), I32(i))
        return v

    def _load_first(self, pointer, count):
        """A vector of `count` neighbours and zeros beyond: in two pieces if that is enough, else under a mask.

        A masked access takes some processors ten times as long as a whole one.
        """
        if count.bit_count() > 2 or count == self.lanes:
            return self.load(pointer, self.prefix(count))
        v, at = self.zero(), 0
        while at < count:
            size = 1 << (count - at).bit_length() - 1
            small = ir.VectorType(self.scalar, size)
            part = self.b.load(self.b.bitcast(self.at(pointer, at), small.as_pointer()), align=self.size)
            wide = self.b.shuffle_vector(part, ir.Constant(small, ir.Undefined), ir.Constant(
                ir.VectorType(I32, self.lanes), [i % size for i in range(self.lanes)]))
            order = [self.lanes + i - at if at <= i < at + size else i for i in range(self.lanes)]
            v = self.b.shuffle_vector(v, wide, ir.Constant(ir.VectorType(I32, self.lanes), order))
            at += size
        return v

    def _repeat(self, pointer, block):
        """The block's elements over and over: contiguous ones are loaded at once."""
        n = len(block)
        if _contiguous(block):
            small = ir.VectorType(self.scalar, n)
            v = self.b.load(self.b.bitcast(self.at(pointer, block[0]), small.as_pointer()), align=self.size)
            order = [i % n for i in range(self.lanes)]
            return self.b.shuffle_vector(v, ir.Constant(small, ir.Undefined),
                                         ir.Constant(ir.VectorType(I32, self.lanes), order))
        v = self.gather(pointer, [*block, *[None] * (self.lanes - n)])
        return self.shuffle(v, [i % n for i in range(self.lanes)])

    def scatter(self, value, pointer, offsets):
        """Store lane i at offset ``offsets[i]``, where that is not None; neighbours are stored at once."""
        for first, run in runs(offsets):
            where = self.at(pointer, offsets[first])
            if first == 0 and 2 * run > self.lanes:
                self.store(value, where, self.prefix(run))
            elif run == 1:
                self.b.store(self.b.extract_element(value, I32(first)), where)
            else:
                order = ir.Constant(ir.VectorType(I32, run), list(range(first, first + run)))
                part = self.b.shuffle_vector(value, ir.Constant(self.vector, ir.Undefined), order)
                self.b.store(part, self.b.bitcast(where, part.type.as_pointer()), align=self.size)

    def copy(self, source, offsets, target):
        """Write the elements at `offsets` of the source one after the other, zero for None; neighbours in one piece."""
        for i, o in enumerate(offsets):
            if o is None:
                self.b.store(self.scalar(0.0), self.at(target, i))
        for first, run in runs(offsets):
            for i in range(first, first + run, self.lanes):
                kind = ir.VectorType(self.scalar, min(self.lanes, first + run - i)).as_pointer()
                v = self.b.load(self.b.bitcast(self.at(source, offsets[i]), kind), align=self.size)
                self.b.store(v, self.b.bitcast(self.at(target, i), kind), align=self.size)

    def broadcast(self, pointer):
        """The scalar at `pointer` in every lane."""
        return self._splat(self.b.load(pointer), self.vector)

    # --- arithmetic -----------------------------------------------------------------------------------------
    def zero(self):
        """A vector of zeros."""
        return ir.Constant(self.vector, None)

    def fma(self, a, b, c):
        """a * b + c, fused where the processor can."""
        return self._call("llvm.fmuladd", a, b, c)

    def activation(self, v, kind):
        """None: v; "relu": max(v, 0), NaN stays NaN as in torch; (a, b): a tanh(b v)."""
        if kind is None:
            return v
        if kind == "relu":
            return self.b.select(self.b.fcmp_ordered("<", v, self.zero()), self.zero(), v)
        a, b = kind
        return self.b.fmul(self.constant(a), self.tanh(self.b.fmul(self.constant(b), v)))

    def tanh(self, v):
        """tanh(v) = 1 - 2 / (exp(2 |v|) + 1) with the sign of v; the error is a few units of 1's last place."""
        size = self._call("llvm.fabs", v)
        most = self.constant(10 if self.size == 4 else 20)  # beyond it tanh is 1
        size = self.b.select(self.b.fcmp_ordered(">", size, most), most, size)
        grown = self.b.fadd(self._exp(self.b.fadd(size, size)), self.constant(1))
        return self._call("llvm.copysign", self.b.fsub(self.constant(1), self.b.fdiv(self.constant(2), grown)), v)

    def _exp(self, v):
        """exp(v) = 2^n exp(r) with r = v - n ln 2, by the Taylor series of exp at 0; for v in [0, 40]."""
        b, degree = self.b, 7 if self.size == 4 else 13
        n = self._call("llvm.rint", b.fmul(v, self.constant(math.log2(math.e))))
        high = math.ldexp(round(math.ldexp(math.log(2), 9)), -9)  # n times it is exact
        r = self.fma(n, self.constant(high - math.log(2)), self.fma(n, self.constant(-high), v))
        series = self.constant(1 / math.factorial(degree))
        for k in range(degree - 1, -1, -1):
            series = self.fma(series, r, self.constant(1 / math.factorial(k)))
        bits, mantissa, bias = (32, 23, 127) if self.size == 4 else (64, 52, 1023)
        whole = ir.VectorType(ir.IntType(bits), self.lanes)
        power = b.add(b.fptosi(n, whole), ir.Constant(whole, [bias] * self.lanes))
        return b.fmul(series, b.bitcast(b.shl(power, ir.Constant(whole, [mantissa] * self.lanes)), self.vector))

    def constant(self, value):
        """The number in every lane."""
        return ir.Constant(self.vector, [float(value)] * self.lanes)

    def fold(self, v, count, step, add=None):
        """In every lane the sum of `count` lanes, `step` apart, from this one on, past the last lane from the first.

        Only the first lane is right when all lanes are summed.  `add` adds two vectors, as float32 unless given.
        """
        if count == self.lanes and add is None:
            f = self.intrinsic(f"llvm.vector.reduce.fadd.{self._suffix}", self.scalar, [self.scalar, self.vector])
            total = self.b.call(f, [ir.Constant(self.scalar, -0.0), v], fastmath=("reassoc",))
            return self.b.insert_element(self.zero(), total, I32(0))
        add, total, held = add or self.b.fadd, v, 1
        while 2 * held <= count:
            total = add(total, self._rotated(total, held * step))
            held *= 2
        for k in range(held, count):
            total = add(total, self._rotated(v, k * step))
        return total

    def _rotated(self, v, by):
        return self.shuffle(v, [(i + by) % self.lanes for i in range(self.lanes)])

    def shuffle(self, v, order):
        """The lanes of v in another order."""
        lanes = ir.Constant(ir.VectorType(I32, self.lanes), order)
        return self.b.shuffle_vector(v, ir.Constant(self.vector, ir.Undefined), lanes)

    def prefix(self, count):
        """Mask of the first `count` lanes, None for all."""
        if count == self.lanes:
            return None
        return ir.Constant(self._masks, [i < count for i in range(self.lanes)])

    # --- integers -------------------------------------------------------------------------------------------
    def least(self, a, b):
        """The smaller of two i64."""
        return self.b.select(self.b.icmp_signed("<", a, b), a, b)

    def most(self, a, b):
        """The larger of two i64."""
        return self.b.select(self.b.icmp_signed(">", a, b), a, b)

    def floor(self, value, divisor):
        """An i64 divided by a positive Python int, rounded down."""
        quotient, rest = self.b.sdiv(value, I64(divisor)), self.b.srem(value, I64(divisor))
        return self.b.select(self.b.icmp_signed("<", rest, I64(0)), self.b.sub(quotient, I64(1)), quotient)

    def ceiling(self, value, divisor):
        """An i64 divided by a positive Python int, rounded up."""
        return self.b.sub(I64(0), self.floor(self.b.sub(I64(0), value), divisor))

    # --- control --------------------------------------------------------------------------------------------
    def loop(self, count, carried, body, first=None):
        """``for i in range(first, first + count): carried = body(i, *carried)``; returns the values at the end.

        Counts that are constants are at least 1; run-time counts may be 0 or less.
        """
        if not isinstance(count, ir.Constant):
            return self.when(self.b.icmp_signed(">", count, I64(0)), carried,
                             lambda *c: self._loop(count, list(c), body, first))
        return self._loop(count, carried, body, first)

    def _loop(self, count, carried, body, first):
        b = self.b
        start, end = (I64(0), count) if first is None else (first, b.add(first, count))
        before, block = b.block, b.append_basic_block("loop")
        b.branch(block)
        b.position_at_end(block)
        i, phis = b.phi(I64), [b.phi(v.type) for v in carried]
        after = body(i, *phis)
        following = b.add(i, I64(1))
        for phi, begin, last in zip([i, *phis], [start, *carried], [following, *after]):
            phi.add_incoming(begin, before)
            phi.add_incoming(last, b.block)
        done = b.append_basic_block("done")
        b.cbranch(b.icmp_signed("<", following, end), block, done)
        b.position_at_end(done)
        return after

    def when(self, condition, carried, body):
        """``carried = body(*carried) if condition else carried``."""
        b, before = self.b, self.b.block
        then, done = b.append_basic_block("then"), b.append_basic_block("join")
        b.cbranch(condition, then, done)
        b.position_at_end(then)
        after = body(*carried)
        last = b.block
        b.branch(done)
        b.position_at_end(done)
        phis = [b.phi(v.type) for v in carried]
        for phi, old, new in zip(phis, carried, after):
            phi.add_incoming(old, before)
            phi.add_incoming(new, last)
        return phis

    # --- inside ---------------------------------------------------------------------------------------------
    def _splat(self, scalar, vector):
        undef = ir.Constant(vector, ir.Undefined)
        one = self.b.insert_element(undef, scalar, I32(0))
        return self.b.shuffle_vector(one, undef, ir.Constant(ir.VectorType(I32, self.lanes), None))

    def _call(self, name, *vectors):
        f = self.intrinsic(f"{name}.{self._suffix}", self.vector, [self.vector] * len(vectors))
        return self.b.call(f, vectors)

    def intrinsic(self, name, returns, arguments):
        """LLVM's function of that name, declared on first use."""
        known = self.module.globals.get(name)
        return known or ir.Function(self.module, ir.FunctionType(returns, arguments), name)


def runs(offsets):
    """(first lane, length) of each longest run of neighbouring elements."""
    found = []
    for i, o in enumerate(offsets):
        if o is None:
            continue
        if found and sum(found[-1]) == i and offsets[i - 1] is not None and o == offsets[i - 1] + 1:
            found[-1][1] += 1
        else:
            found.append([i, 1])
    return found


def _contiguous(offsets):
    return None not in offsets and all(o == offsets[0] + i for i, o in enumerate(offsets))


def _repeated(offsets):
    """Length of the shortest block that the offsets repeat."""
    n = len(offsets)
    return next(k for k in range(1, n + 1) if n % k == 0 and offsets == offsets[:k] * (n // k))

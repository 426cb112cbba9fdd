"""Small vocabulary for writing vector kernels as LLVM IR: typed loads, broadcasts, masks, counted loops."""
from llvmlite import ir

I1, I32, I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)


class Emitter:
    """One kernel under construction: `fn(*pointers and i64s) -> void`, vectors of `lanes` elements of `dtype`.

    Parameters
    ----------
    target : Target
    dtype : numpy.dtype
        float32 or float64.
    signature : str
        Argument kinds, one letter each: "p" pointer to elements, "i" int64.
    lanes : int, optional
        Elements of a vector, the target's own unless given.
    """

    def __init__(self, target, dtype, signature, lanes=None):
        self.size, self.lanes = dtype.itemsize, lanes or target.lanes(dtype)
        self.scalar = {4: ir.FloatType(), 8: ir.DoubleType()}[dtype.itemsize]
        self.vector = ir.VectorType(self.scalar, self.lanes)
        self._suffix = f"v{self.lanes}f{8 * self.size}"
        kinds = {"p": self.scalar.as_pointer(), "i": I64}
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

    def mul(self, value, factor):
        """An i64 value times a Python int."""
        return self.b.mul(value, I64(factor))

    def load(self, pointer, mask=None):
        """A vector from an unaligned address; lanes outside the mask read as zero and are not touched."""
        where = self.b.bitcast(pointer, self.vector.as_pointer())
        if mask is None:
            return self.b.load(where, align=self.size)
        f = self._intrinsic(f"llvm.masked.load.{self._suffix}.p0", self.vector,
                            [self.vector.as_pointer(), I32, self._masks, self.vector])
        return self.b.call(f, [where, I32(self.size), mask, self.zero()])

    def store(self, value, pointer, mask=None):
        """A vector to an unaligned address; lanes outside the mask are left alone."""
        where = self.b.bitcast(pointer, self.vector.as_pointer())
        if mask is None:
            self.b.store(value, where, align=self.size)
        else:
            f = self._intrinsic(f"llvm.masked.store.{self._suffix}.p0", ir.VoidType(),
                                [self.vector, self.vector.as_pointer(), I32, self._masks])
            self.b.call(f, [value, where, I32(self.size), mask])

    def load_strided(self, pointer, stride, lanes):
        """`lanes` elements `stride` apart (0: one element in every lane), the other lanes zero."""
        if stride == 0:
            return self.broadcast(pointer)
        if stride == 1:
            return self.load(pointer, None if lanes == self.lanes else self.first_lanes(I64(lanes)))
        v = self.zero()
        for i in range(lanes):
            v = self.b.insert_element(v, self.b.load(self.at(pointer, i * stride)), I32(i))
        return v

    def store_strided(self, value, pointer, stride, lanes):
        """Store the first `lanes` lanes, `stride` elements apart."""
        if stride == 1:
            self.store(value, pointer, None if lanes == self.lanes else self.first_lanes(I64(lanes)))
        else:
            for i in range(lanes):
                self.b.store(self.b.extract_element(value, I32(i)), self.at(pointer, i * stride))

    def broadcast(self, pointer):
        """The scalar at `pointer` in every lane."""
        return self._splat(self.b.load(pointer), self.vector)

    # --- arithmetic -----------------------------------------------------------------------------------------
    def zero(self):
        """A vector of zeros."""
        return ir.Constant(self.vector, [0.0] * self.lanes)

    def fma(self, a, b, c):
        """a * b + c, fused where the processor can."""
        f = self._intrinsic(f"llvm.fmuladd.{self._suffix}", self.vector, [self.vector] * 3)
        return self.b.call(f, [a, b, c])

    def relu(self, v):
        """max(v, 0); NaN stays NaN, as in torch."""
        return self.b.select(self.b.fcmp_ordered("<", v, self.zero()), self.zero(), v)

    def sum(self, v):
        """The sum of the lanes, a scalar, added in pairs."""
        f = self._intrinsic(f"llvm.vector.reduce.fadd.{self._suffix}", self.scalar, [self.scalar, self.vector])
        return self.b.call(f, [ir.Constant(self.scalar, -0.0), v], fastmath=("reassoc",))

    def first_lanes(self, count):
        """Mask of the lanes below the i64 `count`."""
        lanes = ir.VectorType(I64, self.lanes)
        return self.b.icmp_signed("<", ir.Constant(lanes, list(range(self.lanes))), self._splat(count, lanes))

    # --- control --------------------------------------------------------------------------------------------
    def loop(self, count, carried, body):
        """``for i in range(count): carried = body(i, *carried)``, count >= 1; returns the values at the end."""
        b, before = self.b, self.b.block
        block = b.append_basic_block("loop")
        b.branch(block)
        b.position_at_end(block)
        i, phis = b.phi(I64), [b.phi(v.type) for v in carried]
        after = body(i, *phis)
        following = b.add(i, I64(1))
        for phi, start, end in zip([i, *phis], [I64(0), *carried], [following, *after]):
            phi.add_incoming(start, before)
            phi.add_incoming(end, b.block)
        done = b.append_basic_block("done")
        b.cbranch(b.icmp_signed("<", following, count), block, done)
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
        return self.b.shuffle_vector(one, undef, ir.Constant(ir.VectorType(I32, self.lanes), [0] * self.lanes))

    def _intrinsic(self, name, returns, arguments):
        known = self.module.globals.get(name)
        return known or ir.Function(self.module, ir.FunctionType(returns, arguments), name)

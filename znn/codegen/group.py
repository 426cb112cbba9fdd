"""Numbers of less than 32 bits: some channels of a voxel share an element, which multiplies as their dot product.

In memory a volume of c maps is (c / count, z, y, x) elements, those of a map's neighbour beside its own::

    [map 0, map 1] of voxel 0    [map 0, map 1] of voxel 1    ...         bf16: count = 2
    [map 0, map 1, map 2, map 3] of voxel 0               ...             u8: count = 4

A kernel sums over elements as over float32 numbers, with the same addresses, layouts and schedules: only what it makes
of two elements differs. In its registers elements are lanes of float32 vectors, whose bits nothing looks at but what is
here. Where the processor has no instruction for it, numbers are widened.
"""
from dataclasses import dataclass

import numpy as np
from llvmlite import ir

from znn.codegen import integers as whole
from znn.codegen.bits import every, in_pieces, width, words
from znn.codegen.emit import I32, runs


@dataclass(frozen=True)
class Group:
    """A type of elements, in the place of a numpy dtype.

    Attributes
    ----------
    name : str
        Of the numbers.
    count : int
        How many an element has.
    integers : bool
        Whether they are integers (`znn.codegen.integers`), whose sums are too.
    """

    name: str
    count: int
    integers: bool = False
    itemsize = 4
    array = np.dtype(np.uint32)  # of elements

    @property
    def str(self):
        """Name of the elements, as that of a numpy dtype."""
        return f"{self.name}x{self.count}"

    @property
    def bits(self):
        """Of a number."""
        return 8 * self.itemsize // self.count

    def elements(self, channels):
        """Elements of a voxel that has so many channels; what is beyond them in the last one is zero."""
        return -(-channels // self.count)


BF16, U8 = Group("bf16", 2), Group("u8", 4, integers=True)
GROUPS = {g.name: g for g in (BF16, U8)}


def elements(dtype, channels):
    """Elements of a type, a Group or any other, that hold so many channels of a voxel."""
    return dtype.elements(channels) if isinstance(dtype, Group) else channels


def members(dtype):
    """Channels that an element of a type holds, a Group or any other."""
    return dtype.count if isinstance(dtype, Group) else 1


def sums_integers(dtype):
    """Whether products of elements of a type, a Group or any other, are summed as integers."""
    return isinstance(dtype, Group) and dtype.integers


def element(dtype):
    """A group, itself or by its name; anything else as numpy's dtype."""
    if isinstance(dtype, Group):
        return dtype
    return GROUPS[dtype] if isinstance(dtype, str) and dtype in GROUPS else np.dtype(dtype)


def dot(e, group, a, b, c):
    """c and, for each lane, the products of the numbers of a and b; c is float32, or an integer as theirs are.

    The processor's own instruction for bf16 takes denormal numbers for zeros.
    """
    if group.integers:
        return whole.dot(e, a, b, c)
    piece = width(e, f"dot {group.name}")
    if piece is None:
        for x, y in zip(parts(e, group, a), parts(e, group, b)):
            c = e.fma(x, y, c)
        return c
    return in_pieces(e, piece, lambda a, b, c: _native_dot(e, group, piece, a, b, c), a, b, c)


def _native_dot(e, group, lanes, a, b, c):
    elements, sums = ir.VectorType(I32, lanes), ir.VectorType(e.scalar, lanes)
    f = e.intrinsic(e.target.instruction(f"dot {group.name}", lanes), sums, [sums, elements, elements])
    return e.b.call(f, [c, e.b.bitcast(a, elements), e.b.bitcast(b, elements)])


def finished(e, epilogue, v):
    """The activation of an `Epilogue`, and what it adds before numbers are stored as integers."""
    if epilogue.stores and epilogue.stores.integers and (epilogue.activation, epilogue.zero) == ("relu", 0):
        return v  # what is below zero is stored as zero
    v = e.activation(v, epilogue.activation)
    return e.b.fadd(v, e.constant(epilogue.zero)) if epilogue.zero else v


def parts(e, group, v):
    """The numbers of a vector of elements: `count` vectors of float32."""
    bits = e.b.bitcast(v, words(e))
    high = e.b.and_(bits, every(bits.type, 0xffff0000))
    return [e.b.bitcast(w, e.vector) for w in (e.b.shl(bits, every(bits.type, 16)), high)]


def joined(e, group, vectors):
    """A vector of elements from `count` vectors of float32, rounded to the nearest number, of two the even one.

    A NaN becomes a positive one, so that integers order what is written (`znn.runtime.pool`).
    """
    if group.integers:
        return whole.joined(e, vectors)
    missing = e.b.bitcast(every(words(e), 0x7fc00000), e.vector)
    low, high = (e.b.select(e.b.fcmp_unordered("uno", v, v), missing, v) for v in vectors)
    if e.target.instruction(f"round {group.name}", e.lanes):
        halves = ir.VectorType(ir.IntType(16), 2 * e.lanes)
        f = e.intrinsic(e.target.instruction(f"round {group.name}", e.lanes), halves, [e.vector, e.vector])
        both = e.b.call(f, [high, low])  # the numbers of `low` come first
        order = [i // 2 + e.lanes * (i % 2) for i in range(2 * e.lanes)]
        mixed = e.b.shuffle_vector(both, ir.Constant(halves, ir.Undefined),
                                   ir.Constant(ir.VectorType(I32, 2 * e.lanes), order))
        return e.b.bitcast(mixed, e.vector)
    low, high = (_rounded(e, v) for v in (low, high))
    return e.b.bitcast(e.b.or_(e.b.lshr(low, every(low.type, 16)),
                               e.b.and_(high, every(high.type, 0xffff0000))), e.vector)


def ordered(e, group, v):
    """The numbers of a vector of elements as integers of the same order: those below zero have the other bits reversed.

    Positive NaN, and there is no other (`joined`), is the largest.
    """
    numbers = e.b.bitcast(v, ir.VectorType(ir.IntType(group.bits), group.count * e.lanes))
    return numbers if group.integers else _signs_apart(e, numbers)


def unordered(e, group, integers):
    """The vector of elements that `ordered` made integers of."""
    return e.b.bitcast(integers if group.integers else _signs_apart(e, integers), e.vector)


def larger(e, group, a, b):
    """Of each two integers of `ordered` the larger."""
    f = e.intrinsic(f"llvm.{'u' if group.integers else 's'}max.v{a.type.count}i{group.bits}", a.type, [a.type, a.type])
    return e.b.call(f, [a, b])


def numbers(e, group, pointer):
    """A pointer to elements as one to numbers."""
    return e.b.bitcast(pointer, ir.IntType(group.bits).as_pointer())


def scatter(e, group, values, pointer):
    """Store vectors of float32 as numbers of a group.

    Parameters
    ----------
    values : list of (vector, offsets)
        For each lane its offset in numbers, None where it is not stored.
    pointer : pointer to numbers
        To the first one of an element.
    """
    held = {tuple(offsets): v for v, offsets in values}
    elements = e.b.bitcast(pointer, e.scalar.as_pointer())
    while held:
        offsets = next(iter(held))
        mates = [tuple(None if o is None else o - o % group.count + j for o in offsets) for j in range(group.count)]
        if offsets in mates and all(m in held for m in mates):
            v = joined(e, group, [held.pop(m) for m in mates])
            e.scatter(v, elements, [None if o is None else o // group.count for o in mates[0]])
        else:
            _scatter_numbers(e, group, held.pop(offsets), pointer, offsets)


def _scatter_numbers(e, group, v, pointer, offsets):
    """Store numbers whose neighbours in their elements are in no vector of their own."""
    small = ir.VectorType(ir.IntType(group.bits), e.lanes)
    v = e.b.trunc(e.b.bitcast(joined(e, group, [v, *[e.zero()] * (group.count - 1)]), words(e)), small)
    for first, run in runs(offsets):
        order = ir.Constant(ir.VectorType(I32, run), list(range(first, first + run)))
        part = e.b.shuffle_vector(v, ir.Constant(small, ir.Undefined), order)
        e.b.store(part, e.b.bitcast(e.at(pointer, offsets[first]), part.type.as_pointer()), align=group.bits // 8)


def _rounded(e, v):
    """Bits of float32 numbers, those of the nearest bf16 in the upper half."""
    bits = e.b.bitcast(v, words(e))
    odd = e.b.and_(e.b.lshr(bits, every(bits.type, 16)), every(bits.type, 1))
    return e.b.add(bits, e.b.add(odd, every(bits.type, 0x7fff)))


def _signs_apart(e, integers):
    bits = integers.type.element.width
    negative = e.b.ashr(integers, every(integers.type, bits - 1))
    return e.b.xor(integers, e.b.and_(negative, every(integers.type, (1 << bits - 1) - 1)))

"""Elements of four integers of eight bits, those of volumes from 0 to 255 and those of weights from -128 to 127.

Their products are summed exactly, in int32, whatever the processor and the order.  Like elements, sums travel as
float32 of which only the bits count, until `real` makes numbers of them.
"""
from llvmlite import ir

from znn.codegen.bits import every, in_pieces, width, words
from znn.codegen.emit import I32

MOST = 255
WHOLE = 3 << 22                  # added to a number from 0 to 255, it leaves the nearest integer in the lowest bits
BITS_OF_WHOLE = 0x4b400000
DOT = "dot u8"


def dot(e, a, b, c):
    """c and, for each lane, the products of the four numbers of a and b; all of them integers."""
    piece = width(e, DOT)
    if piece is None:
        return _widened_dot(e, a, b, c)
    return in_pieces(e, piece, lambda *vectors: _native_dot(e, piece, *vectors), a, b, c)


def _native_dot(e, lanes, a, b, c):
    vector, of = ir.VectorType(I32, lanes), ir.VectorType(e.scalar, lanes)
    f = e.intrinsic(e.target.instruction(DOT, lanes), vector, [vector] * 3)
    return e.b.bitcast(e.b.call(f, [e.b.bitcast(v, vector) for v in (c, a, b)]), of)


def _widened_dot(e, a, b, c):
    a, b, c = (e.b.bitcast(v, words(e)) for v in (a, b, c))
    for bit in range(0, 32, 8):
        x = e.b.and_(e.b.lshr(a, every(a.type, bit)), every(a.type, 255))
        w = e.b.ashr(e.b.shl(b, every(b.type, 24 - bit)), every(b.type, 24))
        c = e.b.add(c, e.b.mul(x, w))
    return e.b.bitcast(c, e.vector)


def added(e, a, b):
    """The sums of integers."""
    return e.b.bitcast(e.b.add(*(e.b.bitcast(v, words(e)) for v in (a, b))), e.vector)


def real(e, v):
    """Integers as the nearest float32."""
    return e.b.sitofp(e.b.bitcast(v, words(e)), e.vector)


def joined(e, vectors):
    """A vector of elements from four of float32: the nearest integers, of two the even one, from 0 to 255; NaN is 0."""
    total = every(words(e), -sum(BITS_OF_WHOLE << bit for bit in range(0, 32, 8)) % (1 << 32))
    for v, bit in zip(vectors, range(0, 32, 8)):
        v = e.b.select(e.b.fcmp_ordered(">", v, e.zero()), v, e.zero())
        v = e.b.select(e.b.fcmp_ordered("<", v, e.constant(MOST)), v, e.constant(MOST))
        v = e.b.bitcast(e.b.fadd(v, e.constant(WHOLE)), words(e))
        total = e.b.add(total, e.b.shl(v, every(v.type, bit)) if bit else v)
    return e.b.bitcast(total, e.vector)

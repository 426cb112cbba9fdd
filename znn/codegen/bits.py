"""Vectors of float32 of which only the bits count: as words, with constants, in pieces that an instruction takes."""
from llvmlite import ir

from znn.codegen.emit import I32


def words(e):
    """The type of a vector's lanes as words."""
    return ir.VectorType(I32, e.lanes)


def every(vector, value):
    """The integer in every lane of a vector type."""
    return ir.Constant(vector, [value] * vector.count)


def width(e, instruction):
    """Lanes of the widest form of an instruction that vectors can be cut for; None where the processor has none."""
    return next((w for w in (16, 8, 4) if e.lanes % w == 0 and (e.lanes // w).bit_count() == 1
                 and e.target.instruction(instruction, w)), None)


def in_pieces(e, lanes, function, *vectors):
    """``function`` of vectors piece by piece, of so many lanes each and a power of two in number, as one vector."""
    if lanes == e.lanes:
        return function(*vectors)
    take = lambda v, at: e.b.shuffle_vector(v, ir.Constant(v.type, ir.Undefined), ir.Constant(  # noqa: E731
        ir.VectorType(I32, lanes), list(range(at, at + lanes))))
    pieces = [function(*(take(v, at) for v in vectors)) for at in range(0, e.lanes, lanes)]
    while len(pieces) > 1:
        n = pieces[0].type.count
        both = ir.Constant(ir.VectorType(I32, 2 * n), list(range(2 * n)))
        pieces = [e.b.shuffle_vector(*pieces[i:i + 2], both) for i in range(0, len(pieces), 2)]
    return pieces[0]

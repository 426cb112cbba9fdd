"""What a run costs for any extent of the input, from the types alone: sums of so much a voxel, over so many voxels.

A term is (amount, lost): the amount for each voxel of a value, and by how many voxels (z, y, x) that value is smaller
than the function's input.
"""
import math

from znn.graph import memory
from znn.graph.types import ITEMSIZE

PROBE = 64  # voxels beyond the least extent at which lifetimes are found; they are the same at any


def held(function):
    """Bytes of the values that are in use together; what kernels work in is not among them.

    Parameters
    ----------
    function : Function
        Of open extents, one input.

    Returns
    -------
    tuple of tuple of (int, (z, y, x))
        The terms of each step; its result, an array of its own, is in all.
    """
    plan = memory.plan(_at_probe(function))
    terms = {v.name: _term(function, v.type) for v in (function.result, *(each.var for each in function.lets))}
    result = terms[function.result.name]
    steps = ([terms[b.name] for b in plan.buffers if b.first <= step <= b.last] for step in range(len(function.lets)))
    return tuple(dict.fromkeys(tuple(sorted((*alive, result))) for alive in steps))


def multiplications(function):
    """The products that its convolutions add up: terms as in `held`, one for each convolution; tuple."""
    return tuple((float(math.prod(each.call["weight"].type.shape)), _term(function, each.var.type)[1])
                 for each in function.lets if each.call.op == "conv3d")


def _term(function, kind):
    lost = tuple(whole.offset - extent.offset for whole, extent in zip(function.params[0].type.shape[1:],
                                                                       kind.shape[1:]))
    return kind.shape[0] * ITEMSIZE[kind.dtype], lost


def _at_probe(function):
    return function.at({symbol: least + PROBE for symbol, least in function.least.items()})

"""Columns of a row shared out over vectors, m of them in turn, and put back: the shuffles of tiles along x.

A unit of `unit` neighbouring columns stays together: that is the dilation, whose columns belong to as many tiles.
With m = 2, vectors of four lanes and units of one column::

    0 1 2 3 | 4 5 6 7   taken apart   0 2 4 6 | 1 3 5 7
"""
import numpy as np
from llvmlite import ir

from znn.codegen.emit import I32


def taken_apart(e, vectors, unit):
    """m vectors of neighbouring columns as m vectors, number i of which has the units i, m + i, 2 m + i...

    Parameters
    ----------
    e : Emitter
    vectors : list of values
    unit : int
        Divides the lanes of a vector.
    """
    m = len(vectors)
    if m == 1:
        return vectors
    if m % 2 == 0:  # halves in turn take fewer shuffles than all at once
        even, odd = (taken_apart(e, [_picked(e, pair, _units(2 * e.lanes, 2, unit)[side])
                                     for pair in zip(vectors[::2], vectors[1::2])], unit) for side in range(2))
        return [v for pair in zip(even, odd) for v in pair]
    return [_picked(e, vectors, places) for places in _units(m * e.lanes, m, unit)]


def put_back(e, vectors, unit):
    """What `taken_apart` had taken apart; parameters are the same."""
    m = len(vectors)
    if m == 1:
        return vectors
    if m % 2 == 0:
        even, odd = put_back(e, vectors[::2], unit), put_back(e, vectors[1::2], unit)
        return [v for pair in zip(even, odd) for v in _put_back(e, pair, unit)]
    return _put_back(e, vectors, unit)


def next_unit(e, vector, following, unit):
    """The vector a unit further: without its first unit, with the first of `following` at its end."""
    return _picked(e, (vector, following), np.arange(unit, unit + e.lanes))


def _put_back(e, vectors, unit):
    order = np.argsort(np.concatenate(_units(len(vectors) * e.lanes, len(vectors), unit)))
    return [_picked(e, vectors, places) for places in order.reshape(len(vectors), -1)]


def _units(columns, m, unit):
    """For each i of m the columns of the units i, m + i..."""
    return np.arange(columns).reshape(-1, m, unit).transpose(1, 0, 2).reshape(m, -1)


def _picked(e, vectors, places):
    """A vector of the lanes at `places` of the vectors one after the other."""
    found = vectors[0]
    for k, other in enumerate(vectors[1:], 1):
        first = places if k == 1 else np.arange(e.lanes)  # what is there already stays
        order = np.where(places // e.lanes == k, e.lanes + places % e.lanes, first % e.lanes)
        lanes = ir.Constant(ir.VectorType(I32, e.lanes), order.tolist())
        found = e.b.shuffle_vector(found, other, lanes)
    return found

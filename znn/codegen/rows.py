"""Rows of voxels combined into rows by a constant matrix: the transforms of a convolution at points, as machine code.

The function is ``kernel(out, in, bias, width, first, last)`` for channels `first` to `last`.  `out` and `in` are tables
with two int64 for each row: its address in channel 0, and how many elements further the next channel's is, 0 for a row
that all channels share (zeros to read, or somewhere to write what nobody wants).  `width` is no less than a vector.
"""
import itertools

import numpy as np

from znn.codegen import group
from znn.codegen.emit import I64, Emitter
from znn.codegen.plan import PLAIN


def rows(target, dtype, matrix, epilogue=PLAIN):
    """The llvmlite module of ``out[k] = epilogue(sum_i matrix[k][i] in[i])``.

    Parameters
    ----------
    target : Target
    dtype : numpy.dtype or Group
        Of the elements of `in`; those of a group are in `out` too.
    matrix : sequence of sequences of float
    epilogue : Epilogue
        Where it stores groups, a channel of `out` stands for those of `in` and of the bias that it holds.
    """
    matrix, stores = np.array(matrix), epilogue.stores
    members = stores.count if stores else 1
    e = Emitter(target, dtype, "ttpiii")
    out, source, bias, width, first, last = e.fn.args
    outs, sources = ([(e.pointer(e.entry(t, 2 * i)), e.entry(t, 2 * i + 1)) for i in range(n)]
                     for t, n in zip((out, source), matrix.shape))
    before_last = e.b.sub(width, I64(e.lanes))

    def channel(c):
        numbers = [c] if members == 1 else [e.b.add(e.mul(c, members), I64(j)) for j in range(members)]
        read = [c] if isinstance(dtype, group.Group) else numbers
        here, there = [[e.at(p, e.b.mul(i, step)) for p, step in sources] for i in read], [
            e.at(p, e.b.mul(c, step)) for p, step in outs]
        added = [e.broadcast(e.at(bias, i)) for i in numbers] if epilogue.bias else None

        def values(x):
            loaded = [[e.load(e.at(p, x)) for p in channel] for channel in here]
            if isinstance(dtype, group.Group):
                loaded = zip(*(group.parts(e, dtype, v) for v in loaded[0]))
            found = [finished(x, j, _combined(e, matrix, vectors)) for j, vectors in enumerate(loaded)]
            return [group.joined(e, stores, each) for each in zip(*found)] if stores else found[0]

        def finished(x, j, found):
            if epilogue.accumulate:
                found = [e.b.fadd(v, e.load(e.at(p, x))) for v, p in zip(found, there)]
            if epilogue.bias:
                found = [e.b.fadd(v, added[j]) for v in found]
            return [group.finished(e, epilogue, v) for v in found]

        def write(found, x):
            for v, p in zip(found, there):
                e.store(v, e.at(p, x))
            return []

        # The last vector ends with the row, over some lanes of the one before it: what it is added to is read first.
        end = values(before_last) if epilogue.accumulate else None
        vectors = e.b.sdiv(e.b.sub(width, I64(1)), I64(e.lanes))
        e.loop(vectors, [], lambda i: write(values(e.mul(i, e.lanes)), e.mul(i, e.lanes)))
        write(end or values(before_last), before_last)
        return []

    e.loop(e.b.sub(last, first), [], channel, first)
    e.b.ret_void()
    return e.module


def touch(target, dtype, count):
    """The llvmlite module of a function, called like that of `rows`, that asks the caches for `count` input rows."""
    e = Emitter(target, dtype, "ttpiii")
    _, source, _, width, first, last = e.fn.args
    line = 64 // dtype.itemsize
    places = [(e.pointer(e.entry(source, 2 * i)), e.entry(source, 2 * i + 1)) for i in range(count)]

    def channel(c):
        here = [e.at(p, e.b.mul(c, step)) for p, step in places]

        def lines(i):
            for p in here:
                e.prefetch(e.at(p, e.mul(i, line)))
            return []

        e.loop(e.b.add(e.b.sdiv(e.b.sub(width, I64(1)), I64(line)), I64(1)), [], lines)
        return []

    e.loop(e.b.sub(last, first), [], channel, first)
    e.b.ret_void()
    return e.module


def _combined(e, matrix, vectors):
    """The matrix times the vectors; two columns, or two rows, that differ only in signs cost little more than one."""
    matrix, vectors = matrix.copy(), list(vectors)
    for i, j in _twins(matrix.T):
        same = matrix[:, i] == matrix[:, j]
        total, difference = e.b.fadd(vectors[i], vectors[j]), e.b.fsub(vectors[i], vectors[j])
        vectors[i], vectors[j] = total, difference
        matrix[:, j] = np.where(same, 0, matrix[:, i])
        matrix[:, i] = np.where(same, matrix[:, i], 0)
    out = [None] * len(matrix)
    for i, j in _twins(matrix):
        same = matrix[i] == matrix[j]
        even, odd = (_sum(e, np.where(part, matrix[i], 0), vectors) for part in (same, ~same))
        out[i], out[j] = e.b.fadd(even, odd), e.b.fsub(even, odd)
    return [_sum(e, row, vectors) if v is None else v for v, row in zip(out, matrix)]


def _twins(matrix):
    """Disjoint pairs of rows that are equal but for signs, some of which differ, with several entries."""
    pairs = [(i, j) for i, j in itertools.combinations(range(len(matrix)), 2)
             if (abs(matrix[i]) == abs(matrix[j])).all() and (matrix[i] != 0).sum() > 1
             and 0 < ((matrix[i] == matrix[j]) & (matrix[i] != 0)).sum() < (matrix[i] != 0).sum()]
    taken, kept = set(), []
    for pair in pairs:
        if not taken & set(pair):
            kept.append(pair)
            taken |= set(pair)
    return kept


def _sum(e, row, vectors):
    """sum_i row[i] vectors[i], whose factors of one come first: they need no multiplication."""
    total = None
    for factor, v in sorted(((f, v) for f, v in zip(row, vectors) if f), key=lambda term: term[0] != 1):
        if total is None:
            total = v if factor == 1 else e.b.fmul(e.constant(factor), v)
        elif factor == 1:
            total = e.b.fadd(total, v)
        else:
            total = e.fma(e.constant(factor), v, total)
    return e.zero() if total is None else total

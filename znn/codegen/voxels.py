"""Passes over volumes of groups: sliding maxima, and what is done voxel by voxel.

The functions are called as those of `znn.codegen.nest`, ``kernel(out, a, b, bias, first_task, last_task)``.
"""
import itertools

from znn.codegen import group as groups
from znn.codegen.emit import I64, Emitter

VOXELS = 1 << 12  # of a task of `pointwise`


def maxima(target, group, shape, window, dilation):
    """The llvmlite module of ``out[c, p] = max_k a[c, p + dilation k]``, k over the window; a task is a row of `out`.

    Parameters
    ----------
    target : Target
    group : Group
    shape : (int, int, int, int)
        Of `a`, (elements, z, y, x).
    window, dilation : (int, int, int)
    """
    _, z, y, x = shape
    extent = [n - d * (k - 1) for n, k, d in zip(shape[1:], window, dilation)]
    width = extent[2]
    e = Emitter(target, group, "ppppii", min(target.lanes(group), 1 << width.bit_length() - 1))
    out, a, _, _, first, last = e.fn.args
    taps = [(i * y + j) * x + k for i, j, k in itertools.product(*(range(0, d * n, d)
                                                                   for n, d in zip(window, dilation)))]

    def row(task):
        plane, line = e.b.sdiv(task, I64(extent[1])), e.b.srem(task, I64(extent[1]))
        channel, section = e.b.sdiv(plane, I64(extent[0])), e.b.srem(plane, I64(extent[0]))
        read = e.mul(e.b.add(e.mul(e.b.add(e.mul(channel, z), section), y), line), x)
        source, goal = e.at(a, read), e.at(out, e.mul(task, width))

        def vector(at):
            best = [groups.ordered(e, group, e.load(e.at(source, at, t))) for t in taps]
            while len(best) > 1:
                best = [groups.larger(e, group, *best[i:i + 2]) if i + 1 < len(best) else best[i]
                        for i in range(0, len(best), 2)]
            e.store(groups.unordered(e, group, best[0]), e.at(goal, at))
            return []

        e.loop(I64(width // e.lanes), [], lambda i: vector(e.mul(i, e.lanes)))
        if width % e.lanes:
            vector(width - e.lanes)  # ends with the row
        return []

    e.loop(e.b.sub(last, first), [], row, first)
    e.b.ret_void()
    return e.module


def pointwise(target, group, elements, size, adds, activation):
    """The llvmlite module of ``out[c, p] = activation(by[c] a[c, p] + bias[c] + b[c, p])``, the last if it `adds`.

    A task is a piece of an element's volume; the argument `bias` points to `by` of all channels, those that fill the
    last element up included, and to their bias after them.

    Parameters
    ----------
    target : Target
    group : Group
    elements, size : int
        Of a voxel, and voxels.
    adds : bool
    activation : None, "relu", or (a, b) for a tanh(b s)
    """
    e = Emitter(target, group, "ppppii")
    out, a, b, numbers, first, last = e.fn.args
    pieces = tasks(1, size)
    whole, rest = divmod(size, e.lanes)

    def task(i):
        number, piece = e.b.sdiv(i, I64(pieces)), e.b.srem(i, I64(pieces))
        start, of = e.mul(number, size), e.mul(number, group.count)
        by, bias = ([e.broadcast(e.at(numbers, of, j + offset)) for j in range(group.count)]
                    for offset in (0, elements * group.count))

        def vector(at, mask=None):
            x = groups.parts(e, group, e.load(e.at(a, start, at), mask))
            found = [e.fma(factor, v, shift) for factor, v, shift in zip(by, x, bias)]
            if adds:
                more = groups.parts(e, group, e.load(e.at(b, start, at), mask))
                found = [e.b.fadd(v, m) for v, m in zip(found, more)]
            found = groups.joined(e, group, [e.activation(v, activation) for v in found])
            e.store(found, e.at(out, start, at), mask)
            return []

        begin = e.mul(piece, VOXELS // e.lanes)
        e.loop(e.b.sub(e.least(e.b.add(begin, I64(VOXELS // e.lanes)), I64(whole)), begin), [],
               lambda k: vector(e.mul(k, e.lanes)), begin)
        if rest:
            e.when(e.b.icmp_signed("==", piece, I64(pieces - 1)), [], lambda: vector(whole * e.lanes, e.prefix(rest)))
        return []

    e.loop(e.b.sub(last, first), [], task, first)
    e.b.ret_void()
    return e.module


def tasks(elements, size):
    """Of `pointwise`."""
    return elements * -(-size // VOXELS)

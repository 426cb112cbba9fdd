"""How a plane of the output is cut into tasks for `winograd_plane`, and what kernels these ask for.

The tiles of the plane, row after row, are shared out so that every task has whole vectors of them.  What a task has is
pieces of rows: none is shorter than a vector of columns, for transforms work on whole vectors.
"""
import math
from dataclasses import dataclass, replace

import numpy as np

from znn.loops.contraction import Access
from znn.loops.convolution import points_forward
from znn.runtime import arena, default
from znn.runtime.request import Request

SCRATCH = 1280 << 10  # bytes of input at points that a task holds at most
WIDEST = 8            # vectors of tiles that a task has at most: a row's columns stand in a buffer on the stack
TOGETHER = 8          # output channels at least that are multiplied at all points before the next ones

# What costs time beside the multiplications of vectors, in such multiplications:
BEGIN = 0.5           # for each weight that a task reads
DOWN = 30             # to transform along y, for a vector of columns
ACROSS = 220          # to transform along x, for a vector of tiles


@dataclass(frozen=True)
class Layout:
    """How a plane is cut into tasks, and where a task keeps what it has at the points.

    Attributes
    ----------
    pieces : ndarray, (pieces, 5)
        Parts of rows of tiles: first row and first column of the output, the column after the last, the first of the
        lanes in which its tiles are, how many vectors they fill.
    tasks : ndarray, (tasks + 1,)
        The first piece of each task, then how many pieces there are.
    lanes : int
        Of a task, whole vectors.
    together : int
        Output channels of a block.
    pitch : int
        Elements from channel to channel.
    steps : (int, int)
        Elements from point to point, of the input and of a block of the output.
    """

    pieces: np.ndarray
    tasks: np.ndarray
    lanes: int
    together: int
    pitch: int
    steps: tuple


def tiles_along(width, dilation, m):
    """How many tiles of m columns, `dilation` apart, so many columns make."""
    whole, rest = divmod(width, m * dilation)
    return whole * dilation + min(rest, dilation)


def layout(ci, co, taps, dilation, extent, m, dtype, where):
    """The `Layout` of a convolution; parameters are those of `PlaneTiles`."""
    native, points = where.lanes(dtype), math.prod(n + t - 1 for n, t in zip(m, taps[1:]))
    starts, unit = _starts(extent[0], dilation[1], m[0]), (dilation[2], m[1])
    held = points * ci * taps[0] * dtype.itemsize * native  # bytes of a vector of lanes
    least = dilation[2] // native + 1  # the last piece of a row may have more than a unit of columns
    cuts = {v: _cut(starts, extent[1], unit, v * native, native)
            for v in range(least, max(least, min(SCRATCH // held, WIDEST)) + 1)}

    def cost(v):
        """Multiplications of vectors, and others that take the time of what is done beside them."""
        pieces, tasks = cuts[v]
        products = (len(tasks) - 1) * (v + BEGIN) * points * taps[0] * ci * co
        transforms = sum(DOWN * (-(-(end - first) // native) + 1) + ACROSS * n for _, first, end, _, n in pieces)
        return products + transforms * (taps[0] * ci + co)

    vectors = min(cuts, key=cost)
    at_once, _ = default.tile(co, vectors, where.registers)
    together = min(co, at_once * -(-TOGETHER // at_once))
    pitch = (vectors + 1) * native  # the last vector of a piece may be longer than the lanes
    steps = tuple(_odd_lines(c * pitch, dtype) for c in (ci, together))
    return Layout(*map(np.array, cuts[vectors]), vectors * native, together, pitch, steps)


def _cut(starts, width, unit, lanes, native):
    """The pieces and tasks of a `Layout`: rows of tiles one after the other, whole units, no piece below a vector."""
    (dilation, m), pieces, tasks, used = unit, [], [0], 0
    columns = dilation * m
    for row in starts.tolist():
        first = 0
        while first < width:
            end = min(width, first + (lanes - used) // dilation * columns)
            if width - end < native < width - first and end < width:  # what is left must be a piece too
                end = first + (width - native - first) // columns * columns
            if tiles_along(width - first, *unit) <= lanes - used:
                end = width
            if end - first < native and used:
                tasks.append(len(pieces))
                used = 0
                continue
            many = tiles_along(end - first, *unit)
            pieces.append((row, first, end, used, -(-many // native)))
            first, used = end, used + many
    return pieces, [*tasks, len(pieces)]


def _odd_lines(elements, dtype):
    """At least so many elements, in an odd number of cache lines: points then do not drive each other out."""
    line = arena.LINE // dtype.itemsize
    return (-(-elements // line) | 1) * line


def _starts(rows, dilation, m):
    """First row of each row of tiles, those of one phase one after the other."""
    return np.array([first for phase in range(min(dilation, rows)) for first in range(phase, rows, m * dilation)])


def products(points, ci, co, plan, dtype, where):
    """What is asked for: products for the whole blocks of output channels, and for the last one if it is shorter."""
    found, pitch = [], plan.pitch
    for many in filter(None, (min(co, plan.together), co % plan.together if co > plan.together else 0)):
        c = points_forward(points, ci, many, 1, (0, plan.lanes), 1, pitch, pitch)
        v, m = (Access(a.name, (("p", step), *a.strides[1:])) for a, step in zip((c.a, c.out), plan.steps))
        found.append(Request(replace(c, a=v, out=m), default.RULES["spatial"], where, dtype, "before", task="p"))
    return found


def requests(ci, co, taps, dilation, shape, m, dtype, where):
    """What `PlaneTiles` asks for, and how often a run runs it on one thread: dict of `Request` to int.

    `shape` is (n, planes, rows, columns) of the output, the planes being those that all taps are used for.
    """
    plan = layout(ci, co, taps, dilation, shape[2:], m, dtype, where)
    runs = shape[0] * shape[1] * taps[0] * (len(plan.tasks) - 1)
    points = math.prod(n + t - 1 for n, t in zip(m, taps[1:]))
    times = co // plan.together, 1
    return {request: runs * many for request, many in zip(products(points, ci, co, plan, dtype, where), times)}

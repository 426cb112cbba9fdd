"""Random contractions and random legal schedules of them."""
import contextlib

from hypothesis import assume
from hypothesis import strategies as st

from znn.loops import (
    IllegalSchedule,
    Loop,
    Schedule,
    conv_backward_data,
    conv_backward_weights,
    conv_forward,
    matmul,
    points_forward,
    points_weights,
)
from znn.loops.schedule import MARKS
from znn.runtime import default


def convolutions():
    """Small convolutions, all three passes."""
    small = st.integers(1, 3)
    kernel = st.tuples(st.integers(1, 2), small, small)
    extent = st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(1, 9))
    dilation = st.tuples(st.integers(1, 2), small, small)
    conv = (st.integers(1, 2), small, st.integers(1, 5), kernel, extent, dilation)
    return st.one_of(st.builds(conv_forward, *conv, st.tuples(small, small, small)),
                     st.builds(_backward_data, *conv), st.builds(conv_backward_weights, *conv))


def _backward_data(n, ci, co, kernel, extent, dilation):
    """Of a gradient of this extent."""
    size = tuple(e + d * (k - 1) for e, d, k in zip(extent, dilation, kernel))
    return conv_backward_data(n, ci, co, kernel, size, dilation)


@st.composite
def at_points(draw):
    """Small convolutions at points, forward and for the weights, whose rows lie further apart than they are long."""
    ci, taps, dilation, width = (draw(st.integers(1, n)) for n in (3, 3, 3, 19))
    co, rows = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    v_pitch, pitch = width + dilation * (taps - 1) + draw(st.integers(0, 5)), width + draw(st.integers(0, 5))
    if draw(st.booleans()):
        first = draw(st.integers(0, width - 1))
        return points_forward(rows, ci, co, taps, (first, width), dilation, v_pitch, pitch)
    return points_weights(ci, co, taps, rows, width, dilation, v_pitch, pitch, rows + draw(st.integers(0, 1)))


def contractions():
    """Small contractions of every kind."""
    return st.one_of(st.builds(matmul, st.integers(1, 7), st.integers(1, 19), st.integers(1, 7)), convolutions(),
                     at_points())


@st.composite
def schedules(draw, contraction):
    """A legal schedule: each dimension cut into nested blocks, all loops in any order, marks in their phases."""
    chains = {}
    for dim in contraction.dims:
        steps = [1]
        while len(steps) < 3 and draw(st.booleans()):
            steps.append(steps[-1] * draw(st.integers(2, 4)))
        chains[dim.name] = [Loop(dim.name, s) for s in reversed(steps)]
    guarded = {d: [o for o, _ in g.place.strides if o != d] for g in contraction.guards for d, _ in g.place.strides
               if d in contraction.reductions}
    for name in guarded:
        del chains[name][:-1]
    loops = []
    while any(chains.values()):
        name = draw(st.sampled_from([d for d, chain in chains.items() if chain
                                     and not any(chains[o] for o in guarded.get(d, ()))]))
        loops.append(chains[name].pop(0))
    fixed = [i for i, x in enumerate(loops) if x.dim in guarded]
    first, last = min(fixed, default=len(loops)), max(fixed, default=-1)
    cuts = draw(st.integers(0, first)), draw(st.integers(last + 1, len(loops)))
    cuts = sorted(cuts)
    vectors = draw(st.integers(0, 3))
    marks = ["parallel" if i < cuts[0] else "unroll" if i >= cuts[1] else "" for i in range(len(loops))]
    for i in range(max(cuts[0], last + 1, len(loops) - vectors), len(loops)):
        marks[i] = "vector" if all(x.step == 1 for x in loops[i:]) else marks[i]
    try:
        return Schedule(tuple(Loop(x.dim, x.step, m) for x, m in zip(loops, marks))).check(contraction)
    except IllegalSchedule:
        assume(False)


def moves(schedule):
    """Name and arguments of every move that may be legal."""
    for i, loop in enumerate(schedule.loops):
        yield from (("swap", i), ("join", i), *(("split", i, factor) for factor in range(2, 9)))
        yield from (("mark", i, mark) for mark in MARKS if mark != loop.mark)


def neighbour(contraction, schedule, rng):
    """The schedule after a legal move, itself where there is none; `rng` is a `random.Random`."""
    for name, *arguments in sorted(moves(schedule), key=lambda _: rng.random()):
        with contextlib.suppress(IllegalSchedule):
            return getattr(schedule, name)(contraction, *arguments)
    return schedule


def default_schedule(contraction, lanes=4, registers=16):
    """What convolutions use where nothing was measured."""
    if contraction.name == "conv_backward_weights":
        return default.weights(contraction, lanes, registers, 4)
    return default.spatial(contraction, lanes, registers)

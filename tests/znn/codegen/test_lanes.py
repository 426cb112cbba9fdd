"""Vectors over several loops, summed over or not, with every packing and every epilogue, against the interpreter."""
import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.znn.codegen.kernels import F64, generated, operands
from tests.znn.loops.nests import contractions, schedules
from znn.codegen import target
from znn.codegen.plan import PLAIN, Epilogue, Plan
from znn.loops import Schedule, conv_backward_weights, conv_forward, interpret, matmul
from znn.loops.interpreter import visit
from znn.loops.layout import Packing

PACKINGS = (None, "before", "inside")
FORWARD = conv_forward(1, 3, 5, (1, 2, 3), (2, 5, 21), (1, 2, 2))
WEIGHTS = conv_backward_weights(1, 3, 5, (1, 2, 3), (2, 5, 21), (1, 2, 2))
LANES = [
    (FORWARD, "z:1, y:1, x:4, ci:1, ky:1, kx:1, co:1 vector, x:1 vector"),
    (FORWARD, "z:1, y:1, x:8, co:4, ci:1, ky:1, kx:1 unroll, co:1 vector, x:1 vector"),
    (FORWARD, "z:1, y:1, x:16, co:4, ci:1, ky:1, kx:1, x:1 vector, co:1 vector"),         # 64 lanes
    (FORWARD, "z:1, y:1, co:2, x:4, ci:1, kx:1, ky:1 vector, co:1 vector, x:1 vector"),   # summed, the outermost
    (FORWARD, "z:1, y:1, co:2, x:4, ky:1, kx:1, co:1 vector, ci:1 vector, x:1 vector"),   # in the middle
    (FORWARD, "z:1, y:1, co:2, x:4, ci:1, ky:1, co:1 vector, x:1 vector, kx:1 vector"),   # innermost, three of it
    (FORWARD, "z:1, y:1, co:1, x:1, ci:1, ky:1 vector, kx:1 vector"),                     # all summed
    (FORWARD, "z:1, y:1, co:1, x:7, ky:1, x:1, ci:1 vector, kx:1 vector"),
    (FORWARD, "z:1, co:1, y:1, x:6, kx:1, x:1 unroll, ci:1 vector, ky:1 vector"),
    (WEIGHTS, "z:1, y:1, co:4, x:4, ky:1, ci:1, kx:1 unroll, co:1 vector, x:1 vector"),
    (WEIGHTS, "z:1, co:2, x:4, y:1, ky:1, ci:1, kx:1, x:1 vector, co:1 vector"),
    (WEIGHTS, "z:1, x:1, y:1, ky:1, kx:1, ci:1 vector, co:1 vector"),
    (WEIGHTS, "co:1, ci:1, ky:1, kx:1, y:1, x:8, z:1 vector, x:1 vector"),
    (matmul(8, 24, 8), "n:8, m:1, k:1 vector, n:1 vector"),                               # 64 lanes
    (matmul(5, 9, 7), "m:2, n:4, k:4, m:1 vector, k:1 vector, n:1 vector"),               # all three, with rests
]


@pytest.mark.parametrize("packed", PACKINGS, ids=str)
@pytest.mark.parametrize("c, text", LANES, ids=lambda v: v if isinstance(v, str) else v.name)
def test_lanes_of_several_loops(c, text, packed):
    s, (a, b, out) = Schedule.parse(text), operands(c, 3)
    expected = interpret(c, s, np.zeros_like(out), a, b)
    for name in target.available():
        found = generated(c, s, a, b, np.full_like(out, np.nan), target.TARGETS[name], packed)
        assert np.allclose(found, expected, atol=1e-12), name


ACTIVATIONS = {None: lambda v: v, "relu": lambda v: np.maximum(v, 0), (1.7, 0.6): lambda v: 1.7 * np.tanh(0.6 * v)}
EPILOGUES = [Epilogue(*e) for e in itertools.product((False, True), (False, True), ACTIVATIONS)]


def finished(c, sums, out, epilogue, bias):
    """What the epilogue makes of finished sums."""
    v = sums + out if epilogue.accumulate else sums
    if epilogue.bias:
        v = v + np.repeat(bias, out.size // c.extents["co"])
    return ACTIVATIONS[epilogue.activation](v)


CUT = ["ci:2, z:1, y:2, kx:1, y:1, co:1, ci:1, ky:1, x:1",                    # the sum in three pieces
       "z:1 parallel, y:1 parallel, x:16, co:4, ci:1, ky:1, kx:1 unroll, co:1 unroll, x:1 vector"]


@pytest.mark.parametrize("packed", PACKINGS, ids=str)
@pytest.mark.parametrize("text", [*CUT, *(t for c, t in LANES if c is FORWARD)])
def test_every_epilogue(text, packed):
    s, (a, b, out) = Schedule.parse(text), operands(FORWARD, 1)
    bias = np.random.default_rng(2).standard_normal(5)
    sums = interpret(FORWARD, s, np.zeros_like(out), a, b)
    for epilogue in EPILOGUES if text in CUT else EPILOGUES[1::5]:
        found = generated(FORWARD, s, a, b, out, target.current(), packed, epilogue, bias)
        assert np.allclose(found, finished(FORWARD, sums, out, epilogue, bias), atol=1e-12), epilogue


def element(plan, index, advance, first, last):
    """Offset of a point from the loops `first` to `last` - 1."""
    left, offset = dict(index), 0
    for k, loop in enumerate(plan.loops[:last]):
        i, left[loop.dim] = divmod(left[loop.dim], loop.step)
        offset += i * advance[k] if k >= first else 0
    return offset


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_what_is_packed_is_what_the_loops_visit(data):
    """Element p of what is packed is element source[p] of the array, counted from where the block begins."""
    c = data.draw(contractions())
    s = data.draw(schedules(c))
    packed = data.draw(st.sampled_from(PACKINGS[1:]))
    plan = Plan(c, s, target.current(), F64, PLAIN, packed)
    if plan.packed is None:  # nothing is read twice
        assert packed == "inside" and all(c.b.stride(k.dim) for k in plan.loops[plan.n_parallel:plan.scope])
        return
    first = plan.pack if packed == "inside" else 0
    packing, strides = plan.packing, [loop.step * c.b.stride(loop.dim) for loop in plan.loops]
    reached = set()
    for index in visit(c, plan.schedule):
        block = element(plan, index, strides, 0, first)
        p = element(plan, index, packing.advance, first, len(plan.loops))
        assert 0 <= p < packing.size and packing.source[p] + block == c.b.address(index)
        reached.add(p)
    if not c.guards:
        assert all(packing.source[p] == -1 for p in set(range(packing.size)) - reached)
    b = operands(c, 4)[1]
    assert np.array_equal(packing.pack(b), [0 if i < 0 else b[i] for i in packing.source])


def test_a_layout_from_a_loop_on_leaves_out_what_is_around():
    s = Schedule.parse("z:1, y:1, co:2, ci:1, ky:1, kx:1 unroll, co:1 unroll, x:1 vector")
    whole, part = Packing(FORWARD, s, FORWARD.b), Packing(FORWARD, s, FORWARD.b, 3)
    assert whole.size == 3 * part.size and whole.advance[3:] == part.advance[3:]
    assert part.advance[:3] == [0, 0, 0] and np.array_equal(whole.source[:part.size], part.source)

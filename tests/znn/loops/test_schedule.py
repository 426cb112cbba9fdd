"""Schedules as text, their legality, moves between them."""
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.znn.loops.nests import contractions, convolutions, default_schedule, moves, neighbour, schedules
from znn.loops import (
    Access,
    Contraction,
    Dim,
    Guard,
    IllegalSchedule,
    Loop,
    Schedule,
    conv_backward_data,
    conv_backward_weights,
    conv_forward,
    interpret,
    matmul,
)
from znn.loops.interpreter import visit

CONV = conv_forward(1, 3, 5, (1, 3, 3), (2, 6, 10), (1, 2, 2))
TEXT = "z:1 parallel, y:1 parallel, x:8, co:4, ci:1, ky:1, kx:1 unroll, co:1 unroll, x:1 vector"
MATMUL = matmul(6, 8, 4)


def test_golden_text_of_a_contraction():
    assert str(CONV) == ("conv_forward  n:1 co:5 z:2 y:6 x:10 | ci:3 kz:1 ky:3 kx:3\n"
                         "y[300 n + 60 co + 60 z + 10 y + 1 x]".replace("60 co", "120 co").replace("300 n", "600 n")
                         + " += x[840 n + 280 ci + 140 z + 14 y + 1 x + 140 kz + 28 ky + 2 kx]"
                         " * w[27 co + 9 ci + 9 kz + 3 ky + 1 kx]")
    assert "dw[" in str(conv_backward_weights(1, 1, 1, (1, 1, 1), (1, 1, 2)))


def test_text_reads_back_from_one_line_or_many():
    schedule = Schedule.parse(TEXT)
    assert str(schedule) == TEXT and Schedule.parse(TEXT.replace(", ", "\n")) == schedule.check(CONV)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_any_schedule_reads_back_and_visits_every_point_once(data):
    c = data.draw(contractions())
    s = data.draw(schedules(c))
    assert Schedule.parse(str(s)) == s
    points = [tuple(i.values()) for i in visit(c, s)]
    assert len(points) == len(set(points)) == c.flops // 2


@pytest.mark.parametrize("text, reason", [
    ("m:1, n:1, k:1 sideways", "cannot read the loop 'k:1 sideways': expected 'dimension:step'"),
    ("m:1, n:1, q:1", "loop 2 (q:1): matmul has no dimension 'q', only m, n, k"),
    ("m:1, n:1", "dimension k is not visited voxel by voxel: it needs an innermost loop k:1"),
    ("m:1, n:1, k:2", "dimension k is not visited voxel by voxel"),
    ("m:1, n:1, k:0", "loop 2 (k:0): the step must be at least 1"),
    ("m:1, n:1, k:3, k:2, k:1", "loop 3 (k:2): its step must be a proper divisor of 3"),
    ("m:1, n:1 parallel, k:1", "loop 1 (n:1 parallel): parallel loops come first"),
    ("m:1 unroll, n:1, k:1", "loop 1 (n:1): parallel loops come first, then plain, unrolled"),
    ("m:1, n:2 vector, n:1, k:1", "loop 1 (n:2 vector): a vector loop has step 1"),
])
def test_illegal_schedules_say_why(text, reason):
    with pytest.raises(IllegalSchedule) as error:
        Schedule.parse(text).check(MATMUL)
    assert reason in str(error.value)


def test_moves():
    s = Schedule.parse("m:1, n:1, k:1")
    assert str(s.split(MATMUL, 1, 4)) == "m:1, n:4, n:1, k:1"
    assert str(s.split(MATMUL, 1, 4).join(MATMUL, 1)) == str(s)
    assert str(s.swap(MATMUL, 1)) == "m:1, k:1, n:1"
    assert str(s.swap(MATMUL, 1).mark(MATMUL, 2, "vector").split(MATMUL, 2, 2)) == "m:1, k:1, n:2, n:1 vector"
    assert str(s.mark(MATMUL, 0, "parallel")) == "m:1 parallel, n:1, k:1"
    assert s == Schedule((Loop("m"), Loop("n"), Loop("k")))  # moves leave the schedule they start from alone


@pytest.mark.parametrize("move, reason", [
    (lambda s: s.swap(MATMUL, 1), "are loops of one dimension"),
    (lambda s: s.swap(MATMUL, 3), "there are no loops 3 and 4: the schedule has 4"),
    (lambda s: s.swap(MATMUL, 0), "parallel loops come first"),
    (lambda s: s.split(MATMUL, 1, 2), "expected a factor of at least 2 and a step below 8"),
    (lambda s: s.split(MATMUL, 2, 3), "must be a proper divisor of 4"),
    (lambda s: s.split(MATMUL, 9, 2), "there is no loop 9"),
    (lambda s: s.join(MATMUL, 2), "are loops of two dimensions"),
    (lambda s: s.mark(MATMUL, 2, "gpu"), "'gpu' is unknown: choose one of"),
    (lambda s: s.mark(MATMUL, 1, "vector"), "a vector loop has step 1"),
])
def test_illegal_moves_say_why(move, reason):
    with pytest.raises(IllegalSchedule) as error:
        move(Schedule.parse("m:1 parallel, n:4, n:1, k:1"))
    assert reason in str(error.value)


WIDE = matmul(65, 80, 4)
GUARDED = conv_backward_data(1, 2, 3, (2, 3, 1), (5, 9, 4), (1, 2, 1))


@pytest.mark.parametrize("contraction, text, reason", [
    (WIDE, "k:1, m:1 vector, n:1 vector", "the vector loops cover 65 x 80 lanes, at most 64 are possible: split"),
    (WIDE, "m:1, n:10, n:5, k:1, n:1 vector, q:1 vector", "matmul has no dimension 'q'"),
    (GUARDED, "ci:1, z:1, co:1, kz:1, ky:1, y:1, x:1",
     "loop 4 (ky:1): ky is guarded by y, whose loop y:1 must stand outside it"),
    (GUARDED, "ci:1, z:1, y:2, ky:1, y:1, co:1, kz:1, x:1",
     "loop 3 (ky:1): ky is guarded by y, whose loop y:1 must stand outside it"),
    (GUARDED, "ci:1, z:1, y:1, co:1, ky:2, ky:1, kz:1, x:1",
     "dimension ky is guarded: it needs one loop, not split and not marked; found ky:2 (loop 4), ky:1 (loop 5)"),
    (GUARDED, "ci:1, z:1, y:1, co:1, kz:1, ky:1 unroll, x:1 unroll",
     "dimension ky is guarded: it needs one loop, not split and not marked; found ky:1 unroll (loop 5)"),
], ids=["lanes", "dimension", "outside", "block outside", "split", "marked"])
def test_lanes_and_guards_have_limits(contraction, text, reason):
    with pytest.raises(IllegalSchedule) as error:
        Schedule.parse(text).check(contraction)
    assert reason in str(error.value)


def test_a_guard_over_a_single_step_needs_its_loop_too():
    out, a = Access("o", (("i", 1),)), Access("a", (("i", 1),))
    c = Contraction("c", (Dim("i", 3), Dim("k", 1, True)), out, a, a, guards=(
        Guard(Access("a", (("i", 1), ("k", -1))), 2),))
    assert Schedule.parse("i:1, k:1").check(c)
    with pytest.raises(IllegalSchedule, match=r"dimension k is guarded: it needs one loop.*found none"):
        Schedule.parse("i:1").check(c)


def test_as_many_lanes_as_are_possible():
    assert Schedule.parse("m:4, n:16, k:1, m:1 vector, n:1 vector").check(WIDE)
    assert Schedule.parse("m:1, k:1, n:1 vector").check(matmul(2, 1000, 2)), "one loop may be as long as it likes"


@settings(max_examples=30, deadline=None)
@given(convolutions(), st.integers(0, 999))
def test_moves_from_the_default_schedule_keep_the_result(contraction, seed):
    """Sums of small integers are exact in any order: results are compared bit for bit."""
    size = lambda t: 1 + t.start + sum(max(0, s) * (contraction.extents[d] - 1) for d, s in t.strides)  # noqa: E731
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    a, b, out = (numbers.integers(-9, 10, size(t)) for t in (contraction.a, contraction.b, contraction.out))
    schedule = default_schedule(contraction)
    expected = interpret(contraction, schedule, out.copy(), a, b)
    for _ in range(12):
        schedule = neighbour(contraction, schedule, rng)
        assert Schedule.parse(str(schedule)) == schedule.check(contraction)
    assert np.array_equal(interpret(contraction, schedule, out.copy(), a, b), expected)


BACK = {"swap": lambda i, s: ("swap", i), "split": lambda i, s: ("join", i),
        "mark": lambda i, s: ("mark", i, s.loops[i].mark)}


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_every_move_but_a_join_is_undone_by_another(data):
    c = data.draw(contractions())
    s = data.draw(schedules(c))
    for name, i, *how in moves(s):
        if name in BACK:
            try:
                moved = getattr(s, name)(c, i, *how)
            except IllegalSchedule:
                continue
            back, *arguments = BACK[name](i, s)
            assert getattr(moved, back)(c, *arguments) == s != moved

"""Default schedules: their texts, and that they are legal for whatever comes."""
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.znn.loops.nests import convolutions
from znn.codegen.target import TARGETS
from znn.loops import conv_backward_data, conv_backward_weights, conv_forward, points_forward, points_weights
from znn.runtime import default

FIRST = conv_forward(1, 1, 24, (1, 3, 3), (5, 182, 182))
MIDDLE = conv_forward(1, 36, 36, (1, 3, 3), (5, 170, 170), (1, 2, 2))
EDGE = conv_forward(1, 36, 36, (1, 3, 3), (5, 170, 170), (1, 2, 2), columns=(160, 170))
LAST = conv_forward(1, 100, 2, (1, 1, 1), (1, 100, 100))
DATA = conv_backward_data(1, 60, 100, (1, 3, 3), (2, 84, 116), (1, 8, 8))
WEIGHTS = conv_backward_weights(1, 48, 48, (1, 5, 5), (1, 187, 187), (1, 2, 2))
POINTS = points_forward(6, 36, 36, 3, (0, 170), 2, 208, 176)
POINT_WEIGHTS = points_weights(36, 36, 3, 2, 170, 2, 208, 176, 2)


def schedule(rule, contraction, target):
    size = target.bits // 32, target.registers
    if rule == "weights":
        return default.weights(contraction, *size, 4, **({"tasks": 1} if contraction.name == "points_weights" else {}))
    return getattr(default, rule)(contraction, *size)


@pytest.mark.parametrize("rule, contraction, name, text", [
    ("spatial", FIRST, "avx512",
     "z:1 parallel, y:1 parallel, x:96, co:4, ky:1, kx:1 unroll, co:1 unroll, x:1 vector"),
    ("spatial", MIDDLE, "avx512",
     "z:1 parallel, y:1 parallel, x:96, co:4, ci:1, ky:1, kx:1 unroll, co:1 unroll, x:1 vector"),
    ("narrow", EDGE, "avx512",
     "z:1 parallel, y:1 parallel, co:32, ky:1, ci:1, kx:1 unroll, x:1 unroll, co:1 vector"),
    ("spatial", MIDDLE, "avx2",
     "z:1 parallel, y:1 parallel, x:24, co:4, ci:1, ky:1, kx:1 unroll, co:1 unroll, x:1 vector"),
    ("narrow", EDGE, "avx2",
     "z:1 parallel, y:1 parallel, co:8, ky:1, ci:1, kx:1 unroll, x:1 unroll, co:1 vector"),
    ("spatial", LAST, "avx512",
     "y:1 parallel, x:64, ci:1, co:1 unroll, x:1 vector"),
    ("spatial", DATA, "avx512",
     "z:1 parallel, y:1 parallel, x:64, ci:6, co:1, ky:1, kx:1 unroll, ci:1 unroll, x:1 vector"),
    ("weights", WEIGHTS, "avx512",
     "y:19 parallel, co:8 parallel, ci:2, ky:1, y:1, x:4, kx:1 unroll, ci:1 unroll, co:4 unroll, co:1 vector, "
     "x:1 vector"),
    ("weights", WEIGHTS, "avx2",
     "y:19 parallel, co:8 parallel, ci:1, ky:1, y:1, x:2, kx:1 unroll, co:4 unroll, co:1 vector, x:1 vector"),
    ("weights", WEIGHTS, "neon",
     "y:19 parallel, co:8 parallel, ci:2, ky:1, y:1, x:1, kx:1 unroll, ci:1 unroll, co:4 unroll, co:1 vector"),
    ("spatial", POINTS, "avx512",
     "p:1 parallel, x:96, co:4, ci:1, kx:1 unroll, co:1 unroll, x:1 vector"),
    ("weights", POINT_WEIGHTS, "avx512",
     "co:12 parallel, ci:3, y:1, x:4, kx:1 unroll, ci:1 unroll, co:4 unroll, co:1 vector, x:1 vector"),
], ids=lambda v: v if isinstance(v, str) and len(v) < 9 else getattr(v, "name", None))
def test_golden_texts(rule, contraction, name, text):
    assert str(schedule(rule, contraction, TARGETS[name])) == text


@settings(max_examples=200, deadline=None)
@given(convolutions())
def test_legal_for_any_convolution(contraction):
    rules = ["weights"] if contraction.name == "conv_backward_weights" else ["spatial", "narrow"]
    for target in TARGETS.values():
        for rule in rules:
            assert schedule(rule, contraction, target).check(contraction)


@given(st.integers(1, 400), st.integers(1, 200), st.sampled_from([2, 4, 8, 16]))
def test_parts_of_a_row_follow_one_another(width, channels, lanes):
    parts = default.columns(width, channels, lanes)
    assert [first for first, _, _ in parts] == [0, *(end for _, end, _ in parts[:-1])]
    assert parts[-1][1] == width and all(end > first for first, end, _ in parts)
    assert all((end - first) % lanes == 0 for first, end, rule in parts[:-1])
    assert all(end - first < lanes for first, end, rule in parts if rule == "narrow")

"""Default schedules: their texts, and that they are legal for whatever comes."""
import pytest
from hypothesis import given, settings

from tests.znn.loops.nests import convolutions
from znn.codegen.target import TARGETS
from znn.loops import conv_backward_data, conv_backward_weights, conv_forward
from znn.runtime import default

FIRST = conv_forward(1, 1, 24, (1, 3, 3), (5, 182, 182))
MIDDLE = conv_forward(1, 36, 36, (1, 3, 3), (5, 170, 170), (1, 2, 2))
LAST = conv_forward(1, 100, 2, (1, 1, 1), (1, 100, 100))
DATA = conv_backward_data(1, 60, 100, (1, 3, 3), (2, 84, 116), (1, 8, 8))
WEIGHTS = conv_backward_weights(1, 48, 48, (1, 5, 5), (1, 187, 187), (1, 2, 2))


def schedule(c, name):
    t = TARGETS[name]
    rule = default.weights if c.name == "conv_backward_weights" else default.spatial
    return rule(c, t.bits // 32, t.registers, 4)


@pytest.mark.parametrize("contraction, name, text", [
    (FIRST, "avx512", "z:1 parallel, y:1 parallel, x:96, co:4, ky:1, kx:1 unroll, co:1 unroll, x:1 vector"),
    (MIDDLE, "avx512", "z:1 parallel, y:1 parallel, x:96, co:4, ci:1, ky:1, kx:1 unroll, co:1 unroll, x:1 vector"),
    (MIDDLE, "avx2", "z:1 parallel, y:1 parallel, x:24, co:4, ci:1, ky:1, kx:1 unroll, co:1 unroll, x:1 vector"),
    (LAST, "avx512", "y:1 parallel, x:96, ci:1, co:1 unroll, x:1 vector"),
    (DATA, "avx512", "z:1 parallel, y:1 parallel, x:48, ci:9, ky:1, co:1, kx:1 unroll, ci:1 unroll, x:1 vector"),
    (WEIGHTS, "avx512",
     "y:32 parallel, co:5 parallel, ci:1, ky:1, y:1, x:16, co:1 unroll, kx:1 unroll, x:1 vector"),
    (WEIGHTS, "avx2",
     "y:38 parallel, co:4 parallel, ci:1, ky:1, kx:3, y:1, x:8, co:1 unroll, kx:1 unroll, x:1 vector"),
], ids=lambda v: v if isinstance(v, str) and len(v) < 9 else "")
def test_golden_texts(contraction, name, text):
    assert str(schedule(contraction, name)) == text


@settings(max_examples=200, deadline=None)
@given(convolutions())
def test_legal_for_any_convolution(contraction):
    for name in TARGETS:
        assert schedule(contraction, name).check(contraction)

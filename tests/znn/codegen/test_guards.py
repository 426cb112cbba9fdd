"""Kernels whose sums are clipped at the borders, against the interpreter."""
import numpy as np
import pytest

from tests.znn.codegen.kernels import generated, operands
from znn.codegen import target
from znn.codegen.plan import Epilogue
from znn.loops import Schedule, conv_backward_data, interpret
from znn.loops.interpreter import visit

# extent of x and dilation: the gradient is larger and smaller than the dilation, one voxel thin, and 3 x 3 taps wide
PLACES = [((4, 9, 7), (1, 1, 1)), ((3, 11, 19), (1, 4, 2)), ((6, 9, 5), (5, 4, 1)), ((4, 15, 9), (3, 7, 3)),
          ((2, 3, 5), (1, 1, 2))]
ORDERS = {
    "sums inside": "z:1 parallel, y:1 parallel, x:8, ci:2, co:1, kz:1, ky:1, kx:1 unroll, ci:1 unroll, x:1 vector",
    "a sum around blocks": "z:1, kz:1, y:1 parallel, ky:1, x:1, ci:1, co:1, kx:1",
    "both sums around blocks": "z:1, y:1, kz:1, ky:1, ci:2, x:4, co:1, kx:1, ci:1 unroll, x:1 vector",
    "sums apart": "y:1, ky:1, co:2, z:1, kz:1, co:1, kx:1 unroll, ci:1 vector, x:1 vector",
    "rows in blocks": "y:2 parallel, z:1, y:1, ky:1, co:1, kz:1, kx:1, x:1, ci:1 vector",
}


def legal(text, c):
    """The schedule with its parallel loops in front and without loops that make no step."""
    inside, loops = dict(c.extents), []
    for loop in Schedule.parse(text).loops:
        if loop.step < inside[loop.dim]:
            loops.append(loop)
            inside[loop.dim] = loop.step
    return Schedule(tuple(sorted(loops, key=lambda loop: loop.mark != "parallel"))).check(c)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("extent, dilation", PLACES, ids=str)
def test_clipped_at_every_border(extent, dilation, order):
    kernel = tuple(3 if 2 * d < e else 2 if d < e else 1 for e, d in zip(extent, dilation))
    c = conv_backward_data(2, 3, 4, kernel, extent, dilation)
    s, (a, b, out) = legal(f"n:1, {ORDERS[order]}", c), operands(c, 5)
    expected = interpret(c, s, np.zeros_like(out), a, b)
    for packed in (None, "before", "inside"):
        found = generated(c, s, a, b, np.full_like(out, np.nan), target.current(), packed)
        assert np.allclose(found, expected, atol=1e-12), packed
    found = generated(c, s, a, b, out, target.current(), None, Epilogue(True, False, (1.7, 0.6)))
    assert np.allclose(found, 1.7 * np.tanh(0.6 * (expected + out)), atol=1e-12)


@pytest.mark.parametrize("order", ORDERS)
def test_a_point_that_no_tap_meets_is_zero(order):
    """Two taps 6 rows apart and a gradient of 2 rows: rows 2 to 5 of 8 are sums of nothing."""
    c = conv_backward_data(1, 3, 4, (1, 2, 2), (2, 8, 6), (1, 6, 1))
    s, (a, b, out) = legal(ORDERS[order], c), operands(c, 6)
    dx = generated(c, s, a, b, np.full_like(out, np.nan), target.current()).reshape(3, 2, 8, 6)
    assert (dx[:, :, 2:6] == 0).all() and (dx[:, :, :2] != 0).all() and (dx[:, :, 6:] != 0).all()
    finished = generated(c, s, a, b, out, target.current(), None, Epilogue(True, False, "relu")).reshape(3, 2, 8, 6)
    assert np.array_equal(finished[:, :, 2:6], np.maximum(out.reshape(3, 2, 8, 6)[:, :, 2:6], 0))


def test_what_is_clipped_is_not_read():
    c = conv_backward_data(1, 2, 3, (2, 3, 3), (4, 9, 8), (2, 3, 1))
    s, (a, b, _) = legal(ORDERS["sums inside"], c), operands(c, 7)
    walled = np.full(a.size + 600, np.nan)
    for index in visit(c, s):
        at = c.a.address(index)
        walled[300 + at] = a[at]
    found = generated(c, s, walled[300:], b, np.zeros(2 * 4 * 9 * 8), target.current())
    assert np.isfinite(found).all()

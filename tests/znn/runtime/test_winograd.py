"""Convolutions at points against torch in float64, whatever the tile, and when they are chosen."""
import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from znn.codegen import target
from znn.codegen.plan import PLAIN, Epilogue
from znn.loops.winograd import POINTS
from znn.runtime import arena, conv, winograd, winograd_weights
from znn.runtime.winograd import Tiles
from znn.runtime.winograd_weights import WeightTiles

BIASED = Epilogue(bias=True, activation="relu")


def make(n, ci, co, taps, extent, dilation, dtype=np.float32):
    rng = np.random.default_rng(0)
    size = [e + d * (k - 1) for e, d, k in zip(extent, dilation, taps)]
    shapes = (n, ci, *size), (co, ci, *taps), (co,), (n, co, *extent)
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


def passes(m, x, w, b, grad, dilation):
    """Forward with bias and ReLU, the gradient for x, the gradient for w, all in tiles of m rows."""
    (co, ci), taps, where = w.shape[:2], w.shape[2:], target.current()
    y, dx = np.full_like(grad, np.nan), np.full_like(x, np.nan)
    Tiles(ci, co, taps, dilation, y.shape[4], m, x.dtype, BIASED, where).run(y, x, w, b)
    reach = [d * (k - 1) for d, k in zip(dilation, taps)]
    g, left, _ = conv.prepared(grad, None, None, reach[2])
    Tiles(co, ci, taps, dilation, x.shape[4], m, x.dtype, PLAIN, where, mirrored=True).run(
        dx, g, w, start=left - reach[2], extent=grad.shape[2:4], before=reach[:2])
    shape = (grad.shape[0], *grad.shape[2:])
    return y, dx, WeightTiles(ci, co, taps, dilation, shape, m, x.dtype, where).run(x, g, left)


def torchs(x, w, b, grad, dilation):
    x, w, b, grad = (torch.from_numpy(a).double() for a in (x, w, b, grad))
    x.requires_grad_()
    w.requires_grad_()
    y = F.conv3d(x, w, dilation=dilation)
    dx, dw = torch.autograd.grad(y, (x, w), grad)
    return [t.detach().numpy() for t in ((y + b[:, None, None, None]).relu(), dx, dw)]


def compare(m, case, dilation, tolerance=3e-6):
    for name, a, b in zip(("y", "dx", "dw"), passes(m, *case, dilation), torchs(*case, dilation)):
        assert np.abs(a - b).max() <= tolerance * max(1, np.abs(b).max()), name


@pytest.mark.parametrize("m, taps", [(m, r) for r in (2, 3, 4, 5) for m in (2, 3, 4, 5) if m + r - 1 in POINTS])
def test_every_tile(m, taps):
    for dilation in (1, 8):
        d = (1, dilation, dilation)
        compare(m, make(1, 3, 5, (1, taps, taps), (2, 19, 37), d), d)


@pytest.mark.parametrize("dilation", [1, 2, 4, 16])
def test_every_dilation(on_target, dilation):
    d = (1, dilation, dilation)
    compare(4, make(1, 7, 9, (2, 3, 3), (2, 61, 83), d), d, tolerance=5e-6)


def test_planes_that_no_tap_reaches():
    compare(4, make(1, 4, 5, (2, 3, 3), (1, 20, 33), (3, 1, 1)), (3, 1, 1))


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_any_convolution(data):
    draw = lambda lo, hi: data.draw(st.integers(lo, hi))  # noqa: E731
    taps, d = tuple(draw(lo, 4) for lo in (1, 2, 1)), tuple(draw(1, 3) for _ in range(3))
    m = data.draw(st.sampled_from([m for m in (2, 3, 4, 5) if m + taps[1] - 1 in POINTS]))
    case = make(draw(1, 2), draw(1, 9), draw(1, 17), taps, (draw(1, 3), draw(1, 30), draw(16, 60)), d)
    compare(m, case, d)


def test_rows_in_several_blocks(on_target, monkeypatch):
    monkeypatch.setattr(winograd, "SCRATCH", 6 * 11 * 32 * 4)
    monkeypatch.setattr(winograd_weights, "STRIP", 6 * 11 * 32 * 4)
    d = (1, 2, 2)
    case = make(1, 5, 6, (2, 3, 3), (2, 30, 75), d)
    assert len(Tiles(5, 6, (2, 3, 3), d, 75, 4, np.dtype(np.float32), PLAIN, target.current()).blocks) > 1
    compare(4, case, d)


def test_float64_is_exact():
    d = (2, 3, 1)
    compare(4, make(2, 4, 7, (2, 3, 2), (3, 25, 33), d, np.float64), d, tolerance=1e-12)


def test_adding_to_what_is_there():
    x, w, b, before = make(1, 4, 6, (1, 3, 3), (2, 21, 35), (1, 1, 1))
    y = before.copy()
    Tiles(4, 6, (1, 3, 3), (1, 1, 1), 35, 4, x.dtype, Epilogue(True, True, "relu"), target.current()).run(y, x, w, b)
    expected = F.conv3d(*(torch.from_numpy(a).double() for a in (x, w, b))).numpy() + before
    np.testing.assert_allclose(y, np.maximum(expected, 0), atol=1e-5)


def test_same_bits_whatever_the_number_of_threads():
    case, d = make(1, 5, 13, (2, 3, 3), (3, 30, 45), (1, 2, 2)), (1, 2, 2)
    before = numba.get_num_threads()
    try:
        results = []
        for threads in (1, before):
            numba.set_num_threads(threads)
            results.append(passes(4, *case, d))
    finally:
        numba.set_num_threads(before)
    for a, b in zip(*results):
        assert np.array_equal(a, b)


def test_what_lies_around_does_not_matter():
    """Memory that was used before, operands among NaN: nothing but the operands reaches the results."""
    d = (1, 4, 4)
    case = make(1, 4, 6, (2, 3, 3), (2, 17, 37), d)
    walled = []
    for a in case:
        wall = np.full(a.size + 128, np.nan, a.dtype)
        wall[64:-64] = a.ravel()
        walled.append(wall[64:-64].reshape(a.shape))
    expected = passes(4, *case, d)
    dirty = [arena.empty((1 << size,), np.dtype(np.float32)) for size in range(14, 23)]
    for array in dirty:
        array.fill(np.nan)
    del dirty, array
    for a, b in zip(expected, passes(4, *walled, d)):
        assert np.isfinite(b).all()
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_the_direct_form_can_be_asked_for(monkeypatch):
    x, w, b, grad = make(1, 24, 24, (1, 3, 3), (2, 40, 40), (1, 1, 1))
    results = []
    for wanted in "10":
        monkeypatch.setenv("ZNN_WINOGRAD", wanted)
        results.append((conv.forward(x, w, b), *conv.backward(x, w, None, grad)[:2]))
    for points, direct in zip(*results):
        assert not np.array_equal(points, direct)
        np.testing.assert_allclose(points, direct, atol=1e-5 * np.abs(direct).max())

"""Convolutions at points of the plane against torch in float64, whatever the tile, and how a plane is cut."""
import itertools

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
from znn.runtime import arena, conv, winograd_layout
from znn.runtime.winograd_plane import PlaneTiles

BIASED = Epilogue(bias=True, activation="relu")
SIZES = {r: [m for m in (2, 3, 4, 5) if m + r - 1 in POINTS] for r in (2, 3, 4, 5)}


def make(n, ci, co, taps, extent, dilation, dtype=np.float32):
    rng = np.random.default_rng(0)
    size = [e + d * (k - 1) for e, d, k in zip(extent, dilation, taps)]
    shapes = (n, ci, *size), (co, ci, *taps), (co,), (n, co, *extent)
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


def passes(m, x, w, b, grad, dilation):
    """Forward with bias and ReLU, and the gradient for x, in tiles of m rows and columns."""
    (co, ci), taps, where = w.shape[:2], w.shape[2:], target.current()
    y, dx = np.full_like(grad, np.nan), np.full_like(x, np.nan)
    PlaneTiles(ci, co, taps, dilation, y.shape[3:], m, x.dtype, BIASED, where).run(y, x, w, b)
    reach = [d * (k - 1) for d, k in zip(dilation, taps)]
    g, left, _ = conv.prepared(grad, None, None, reach[2])
    PlaneTiles(co, ci, taps, dilation, x.shape[3:], m, x.dtype, PLAIN, where, mirrored=True).run(
        dx, g, w, start=left - reach[2], extent=grad.shape[2:4], before=reach[:2])
    return y, dx


def torchs(x, w, b, grad, dilation):
    x, w, b, grad = (torch.from_numpy(a).double() for a in (x, w, b, grad))
    x.requires_grad_()
    y = F.conv3d(x, w, dilation=dilation)
    dx, = torch.autograd.grad(y, x, grad)
    return [t.detach().numpy() for t in ((y + b[:, None, None, None]).relu(), dx)]


def compare(m, case, dilation, tolerance=5e-6):
    for name, a, b in zip(("y", "dx"), passes(m, *case, dilation), torchs(*case, dilation)):
        assert np.abs(a - b).max() <= tolerance * max(1, np.abs(b).max()), name


@pytest.mark.parametrize("m, taps", [((a, b), (r, s)) for r, s in itertools.product(SIZES, SIZES)
                                     for a, b in ((SIZES[r][0], SIZES[s][-1]), (SIZES[r][-1], SIZES[s][0]))])
def test_every_tile(m, taps):
    for dilation in (1, 8):
        d = (1, dilation, dilation)
        compare(m, make(1, 3, 5, (1, *taps), (2, 19, 37), d), d)


@pytest.mark.parametrize("dilation", [1, 2, 4, 8, 16, 32])
def test_every_dilation(on_target, dilation):
    d = (1, dilation, dilation)
    compare((4, 4), make(1, 7, 9, (2, 3, 3), (2, 61, 83), d), d)


def test_planes_that_no_tap_reaches():
    compare((4, 4), make(1, 4, 5, (2, 3, 3), (1, 20, 33), (3, 1, 1)), (3, 1, 1))


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_any_convolution(data):
    draw = lambda lo, hi: data.draw(st.integers(lo, hi))  # noqa: E731
    taps, d = (draw(1, 3), draw(2, 5), draw(2, 5)), (draw(1, 3), draw(1, 5), data.draw(st.sampled_from([1, 2, 4, 8])))
    m = tuple(data.draw(st.sampled_from(SIZES[t])) for t in taps[1:])
    compare(m, make(draw(1, 2), draw(1, 9), draw(1, 40), taps, (draw(1, 3), draw(1, 30), draw(16, 60)), d), d)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_constant_in_constant_out(dtype):
    x, w, b, _ = make(1, 8, 5, (1, 3, 3), (2, 61, 83), (1, 2, 2), dtype)
    x[:] = 1
    y = np.empty((1, 5, 2, 61, 83), dtype)
    PlaneTiles(8, 5, (1, 3, 3), (1, 2, 2), (61, 83), (4, 4), x.dtype, Epilogue(bias=True),
               target.current()).run(y, x, w, b)
    expected = w.astype(float).sum((1, 2, 3, 4)) + b
    np.testing.assert_allclose(y, np.broadcast_to(expected[:, None, None, None], y.shape),
                               atol=3e-5 if dtype == np.float32 else 1e-13)


def test_float64_is_exact():
    d = (2, 3, 1)
    compare((4, 4), make(2, 4, 7, (2, 3, 2), (3, 25, 33), d, np.float64), d, tolerance=1e-12)


@pytest.mark.parametrize("taps, m", [((1, 3, 3), (4, 4)), ((2, 3, 3), (4, 4)), ((1, 4, 4), (3, 3)),
                                     ((1, 5, 5), (2, 2)), ((1, 2, 2), (5, 5))], ids=str)
def test_rounding_errors_are_bounded(taps, m, monkeypatch):
    """In float32 the root of the mean squared error is below four times that of the direct form: twice along each axis
    (`znn.loops.winograd`)."""
    x, w, _, grad = make(1, 48, 16, taps, (2, 40, 80), (1, 1, 1))
    y, exact = np.empty_like(grad), F.conv3d(*(torch.from_numpy(a).double() for a in (x, w))).numpy()
    PlaneTiles(48, 16, taps, (1, 1, 1), (40, 80), m, x.dtype, PLAIN, target.current()).run(y, x, w)
    monkeypatch.setenv("ZNN_WINOGRAD", "0")
    at_points, direct = (np.sqrt(((a - exact) ** 2).mean()) for a in (y, conv.forward(x, w)))
    assert at_points < 4 * direct


def test_adding_to_what_is_there():
    x, w, b, before = make(1, 4, 6, (1, 3, 3), (2, 21, 35), (1, 1, 1))
    y = before.copy()
    PlaneTiles(4, 6, (1, 3, 3), (1, 1, 1), (21, 35), (4, 4), x.dtype, Epilogue(True, True, "relu"),
               target.current()).run(y, x, w, b)
    expected = F.conv3d(*(torch.from_numpy(a).double() for a in (x, w, b))).numpy() + before
    np.testing.assert_allclose(y, np.maximum(expected, 0), rtol=0, atol=5e-6 * np.abs(expected).max())


def test_same_bits_whatever_the_number_of_threads():
    case, d = make(1, 5, 13, (2, 3, 3), (3, 30, 45), (1, 2, 2)), (1, 2, 2)
    before = numba.get_num_threads()
    try:
        results = []
        for threads in (1, before):
            numba.set_num_threads(threads)
            results.append(passes((4, 4), *case, d))
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
    expected = passes((4, 4), *case, d)
    dirty = [arena.empty((1 << size,), np.dtype(np.float32)) for size in range(14, 23)]
    for array in dirty:
        array.fill(np.nan)
    del dirty, array
    for a, b in zip(expected, passes((4, 4), *walled, d)):
        assert np.array_equal(a, b)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_pieces_cover_the_plane_once(data):
    draw = lambda lo, hi: data.draw(st.integers(lo, hi))  # noqa: E731
    taps, m = (1, draw(2, 5), draw(2, 5)), []
    m = tuple(data.draw(st.sampled_from(SIZES[t])) for t in taps[1:])
    d = (1, draw(1, 9), data.draw(st.sampled_from([1, 2, 4, 8, 16, 32])))
    rows, columns = draw(1, 70), draw(16, 400)
    plan = winograd_layout.layout(draw(1, 100), draw(1, 100), taps, d, (rows, columns), m, np.dtype(np.float32),
                                  target.TARGETS["avx512"])
    written = np.zeros((rows, columns), int)
    for first, end in itertools.pairwise(plan.tasks):
        used = 0
        assert first < end
        for row, start, stop, lane, vectors in plan.pieces[first:end]:
            assert stop - start >= 16 and start % (d[2] * m[1]) == 0 and lane == used
            used += winograd_layout.tiles_along(stop - start, d[2], m[1])
            assert 16 * (vectors - 1) < used - lane <= 16 * vectors
            written[row:row + m[0] * d[1]:d[1], start:stop] += 1
        assert used <= plan.lanes < plan.pitch and lane + 16 * vectors <= plan.pitch
    assert (written == 1).all()

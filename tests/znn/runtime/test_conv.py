"""The three passes against torch in float64."""
import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from znn.runtime import conv

KERNELS = [(1, 1, 1), (1, 2, 2), (1, 3, 3), (1, 4, 4), (1, 5, 5), (2, 3, 3)]  # of N4, VD2D and VD2D3D
NAMES = ("y", "dx", "dw", "db")


def ours(x, w, b, grad, dilation, relu):
    y = conv.forward(x, w, b, dilation, "relu" if relu else None)
    return y, *conv.backward(x, w, y, grad, dilation, "relu" if relu else None)


def torchs(x, w, b, grad, dilation, relu, kept=None):
    """The same in float64; `kept` says where ReLU lets the gradient through, which rounding decides near zero."""
    x, w, b = (torch.from_numpy(a).double().requires_grad_() for a in (x, w, b))
    y = F.conv3d(x, w, b, dilation=dilation)
    grad = torch.from_numpy(grad if kept is None else grad * kept).double()
    found = torch.autograd.grad(y, (x, w, b), grad)
    return [a.detach().numpy() for a in (y.relu() if relu else y, *found)]


def make(rng, n, ci, co, kernel, size, dilation, dtype=np.float32):
    extent = [s - d * (k - 1) for s, d, k in zip(size, dilation, kernel)]
    shapes = (n, ci, *size), (co, ci, *kernel), (co,), (n, co, *extent)
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


def compare(case, dilation, relu, tolerance=3e-6):
    found = ours(*case, dilation, relu)
    for name, a, b in zip(NAMES, found, torchs(*case, dilation, relu, found[0] > 0 if relu else None)):
        assert a.shape == b.shape and a.dtype == case[0].dtype
        assert np.abs(a - b).max() <= tolerance * max(1, np.abs(b).max()), name


@pytest.mark.parametrize("dilation", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_every_kernel_and_dilation(on_target, kernel, dilation):
    d = (1, dilation, dilation)
    size = [max(s, 1 + e * (k - 1)) for s, e, k in zip((7, 61, 83), d, kernel)]
    compare(make(np.random.default_rng(0), 1, 3, 5, kernel, size, d), d, relu=dilation % 4 == 0)


@pytest.mark.parametrize("points", "10")
@pytest.mark.parametrize("ci, co, kernel, dilation", [
    (1, 24, (1, 3, 3), 1), (24, 36, (1, 3, 3), 2), (48, 60, (2, 3, 3), 8), (60, 100, (2, 3, 3), 8),
    (100, 2, (1, 1, 1), 1), (48, 200, (1, 3, 3), 16), (200, 2, (1, 1, 1), 1), (1, 48, (1, 4, 4), 1),
    (48, 48, (1, 5, 5), 2)], ids=str)
def test_layers_of_the_networks(ci, co, kernel, dilation, points, monkeypatch):
    monkeypatch.setenv("ZNN_WINOGRAD", points)
    d = (1, dilation, dilation)
    compare(make(np.random.default_rng(1), 1, ci, co, kernel, (3, 41, 53), d), d, relu=True, tolerance=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_any_convolution(data):
    draw = lambda lo, hi: data.draw(st.integers(lo, hi))  # noqa: E731
    kernel = tuple(draw(1, 4) for _ in range(3))
    d = tuple(draw(1, 3) for _ in range(3))
    size = [e * (k - 1) + draw(1, 37) for e, k in zip(d, kernel)]
    size[0] = min(size[0], d[0] * (kernel[0] - 1) + 3)
    case = make(np.random.default_rng(draw(0, 99)), draw(1, 2), draw(1, 9), draw(1, 17), kernel, size, d)
    compare(case, d, relu=data.draw(st.booleans()))


@pytest.mark.parametrize("held, dilation", [(1, 24), (2, 33), (1, 48), (5, 49)])
def test_columns_that_no_tap_reaches(on_target, held, dilation):
    d = (1, 1, dilation)
    compare(make(np.random.default_rng(8), 1, 8, 2, (1, 1, 2), (1, 2, held + dilation), d), d, relu=False)


def test_float64_is_exact(on_target):
    d = (1, 2, 3)
    case = make(np.random.default_rng(2), 2, 3, 7, (2, 3, 2), (4, 19, 23), d, np.float64)
    compare(case, d, relu=True, tolerance=1e-13)


def test_never_reads_outside_its_operands(on_target):
    rng, d = np.random.default_rng(3), (1, 1, 1)
    for width in (5, 16, 17, 31, 50):
        case = make(rng, 1, 2, 3, (1, 2, 3), (2, 4, width), d)
        walled = []
        for a in case:
            wall = np.full(a.size + 128, np.nan, a.dtype)
            wall[64:-64] = a.ravel()
            walled.append(wall[64:-64].reshape(a.shape))
        for name, plain, inside in zip(NAMES, ours(*case, d, False), ours(*walled, d, False)):
            assert np.isfinite(inside).all(), (name, width)
            assert np.abs(plain - inside).max() <= 1e-6, (name, width)


def test_same_bits_whatever_the_number_of_threads():
    case, d = make(np.random.default_rng(4), 2, 5, 13, (2, 3, 3), (4, 30, 45), (1, 2, 2)), (1, 2, 2)
    before = numba.get_num_threads()
    try:
        results = []
        for threads in (1, before):
            numba.set_num_threads(threads)
            results.append(ours(*case, d, True))
    finally:
        numba.set_num_threads(before)
    for name, a, b in zip(NAMES, *results):
        assert np.array_equal(a, b), name


def test_only_what_is_needed_is_computed():
    x, w, b, grad = make(np.random.default_rng(5), 1, 2, 3, (1, 3, 3), (2, 9, 9), (1, 1, 1))
    dx, dw, db = conv.backward(x, w, None, grad, needs=(False, True, False))
    assert dx is None and db is None
    assert np.allclose(dw, torchs(x, w, b, grad, (1, 1, 1), False)[2], atol=1e-4)


@pytest.mark.parametrize("activation, derivative", [
    ("relu", lambda y: y > 0), ((1.7159, 0.6666), lambda y: 0.6666 * (1.7159 - y * y / 1.7159))])
def test_gradient_passes_through_the_activation(activation, derivative):
    x, w, _, grad = make(np.random.default_rng(6), 1, 2, 3, (1, 2, 2), (2, 9, 11), (1, 1, 1))
    y = np.random.default_rng(7).uniform(-1, 1, grad.shape).astype(np.float32)
    fused = conv.backward(x, w, y, grad, activation=activation)
    plain = conv.backward(x, w, None, (grad * derivative(y)).astype(np.float32))
    for a, b in zip(fused, plain):
        assert np.allclose(a, b, atol=1e-5)

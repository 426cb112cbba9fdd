"""Convolutions prepared once and voxel-wise passes against what they stand for."""
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from znn.codegen import target
from znn.codegen.group import BF16
from znn.runtime import arena, arrays, conv
from znn.runtime.elementwise import elementwise
from znn.runtime.groups import from_groups, grouped
from znn.runtime.pool import max_filter
from znn.runtime.prepared import Convolution

RNG = np.random.default_rng(0)


def random(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape, kernel, dilation", [((36, 3, 41, 61), (1, 3, 3), (1, 2, 2)),
                                                     ((1, 2, 9, 13), (1, 2, 2), (1, 1, 1)),
                                                     ((5, 4, 7, 60), (2, 1, 1), (2, 1, 1))])
@pytest.mark.parametrize("onto", [False, True])
def test_a_prepared_convolution_is_forward_bit_for_bit_each_time(shape, kernel, dilation, onto, on_target):
    w, bias = random(24, shape[0], *kernel), random(24)
    made = Convolution((1, *shape), w, bias, dilation, "relu", onto)
    weights, w[:] = w.copy(), np.nan  # they are not looked at again
    for _ in range(2):
        x = random(1, *shape)
        y = random(1, 24, *arrays.valid(x.shape, weights.shape[2:], dilation))
        expected = conv.forward(x, weights, bias, dilation, "relu", y.copy() if onto else None)
        made.run(y, x, arena.empty(made.scratch_shape, y.dtype))
        assert np.array_equal(y, expected)


def exact(x, w, bias, dilation):
    return F.conv3d(*(torch.from_numpy(a).double() for a in (x, w, bias)), dilation=dilation).numpy()


def half(x):
    return torch.from_numpy(x).bfloat16().float().numpy()


def narrow(x, w, bias, dilation, activation=None, stores=BF16):
    """A convolution of bf16 elements, its result as float32, and whether it was computed at points."""
    made = Convolution(x.shape, w, bias, dilation, activation, operands=BF16, stores=stores)
    extent = arrays.valid(x.shape, w.shape[2:], dilation)
    y = arena.empty((1, BF16.elements(len(w)), *extent), BF16.array) if stores else np.empty((1, len(w), *extent), "f4")
    made.run(y, grouped(x, BF16, 1), arena.empty(made.scratch_shape, w.dtype))
    if stores is None:
        return y, made.scratch_shape != (0,)
    found = np.empty((1, len(w), *extent), np.float32)
    from_groups(found[0], y[0])
    return found, made.scratch_shape != (0,)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_bf16_against_double_precision(data):
    """Directly: as exact as its operands and its result are; at points a few times their rounding errors."""
    draw = lambda lo, hi: data.draw(st.integers(lo, hi))  # noqa: E731
    taps, dilation = tuple(draw(1, 3) for _ in range(3)), tuple(draw(1, 3) for _ in range(3))
    extent, ci, co = (draw(1, 3), draw(1, 25), draw(1, 60)), draw(2, 40), draw(1, 40)
    x = random(1, ci, *(n + d * (k - 1) for n, d, k in zip(extent, dilation, taps)))
    w, bias = random(co, ci, *taps), random(co)
    stores = data.draw(st.sampled_from([BF16, None]))
    with target.use_target(data.draw(st.sampled_from(target.available()))):
        y, at_points = narrow(x, w, bias, dilation, stores=stores)
    stored = 2**-8 * np.abs(y) if stores else 0
    if at_points:
        spread = np.sqrt(exact(x**2, w**2, 0 * bias, dilation))  # of a sum whose terms have signs at random
        apart = np.abs(y - exact(x, w, bias, dilation))
        assert np.sqrt((apart**2).mean()) <= np.sqrt(((stored + 2 * 2**-8 * spread)**2).mean())
        assert (apart <= stored + 12 * 2**-8 * spread).all()
    else:
        size = exact(np.abs(half(x)), np.abs(half(w)), np.abs(bias), dilation)
        assert (np.abs(y - exact(half(x), half(w), bias, dilation)) <= stored + 1e-6 * size).all()


@pytest.mark.parametrize("shape, kernel, dilation", [((36, 3, 41, 61), (1, 3, 3), (1, 2, 2)),
                                                     ((24, 2, 37, 53), (2, 2, 2), (1, 4, 4)),
                                                     ((5, 4, 7, 60), (2, 1, 1), (2, 1, 1))])
def test_bf16_of_a_constant_volume_is_constant(shape, kernel, dilation, on_target):
    w, bias = random(24, shape[0], *kernel), random(24)
    x = np.broadcast_to(random(1, shape[0], 1, 1, 1), (1, *shape)).copy()
    y, at_points = narrow(x, w, bias, dilation, "relu")
    expected = np.maximum(exact(x, w, bias, dilation), 0)
    spread = np.sqrt(exact(x**2, w**2, 0 * bias, dilation)).max()
    apart = np.abs(y - y[..., :1, :1, :1]).max()
    assert apart <= (2**-6 * spread if at_points else 0) and np.abs(y - expected).max() <= 2**-5 * spread
    assert np.abs(y - expected).mean() <= 2**-8 * spread


@pytest.mark.parametrize("activation", [None, "relu", (1.7159, 0.6666)], ids=str)
def test_float32_in_and_bf16_out(activation, on_target):
    """What a network's first convolution does; the number of its maps is odd."""
    x, w, bias = random(1, 1, 2, 9, 45), random(5, 1, 1, 3, 3), random(5)
    made = Convolution(x.shape, w, bias, activation=activation, stores=BF16)
    y, found = np.empty((1, 3, 2, 7, 43), np.uint32), np.empty((5, 2, 7, 43), np.float32)
    made.run(y, x, arena.empty(made.scratch_shape, w.dtype))
    from_groups(found, y[0])
    assert np.array_equal(found, half(conv.forward(x, w, bias, activation=activation))[0])
    assert not (y[0, -1] >> 16).any(), "what fills the last element up is zero"


def test_a_convolution_at_points_works_in_the_memory_it_is_given(monkeypatch):
    made = Convolution((1, 36, 3, 41, 61), random(36, 36, 1, 3, 3))
    assert np.prod(made.scratch_shape) > 0
    x, y = random(1, 36, 3, 41, 61), np.empty((1, 36, 3, 39, 59), np.float32)
    scratch = np.empty(made.scratch_shape, np.float32)
    monkeypatch.setattr(arena, "empty", None)
    made.run(y, x, scratch)


def test_a_maximum_can_be_written_where_one_wants_it():
    x, out = random(1, 3, 2, 20, 37), np.empty((1, 3, 1, 19, 35), np.float32)
    assert max_filter(x, (2, 2, 2), (1, 1, 2), out) is out
    assert np.array_equal(out, max_filter(x, (2, 2, 2), (1, 1, 2)))
    for wrong in (out[..., :-1].copy(), out.astype(np.float64), out[..., ::-1]):
        with pytest.raises(ValueError, match="max filter expects out"):
            max_filter(x, (2, 2, 2), (1, 1, 2), wrong)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("activation", [None, "relu", (1.7159, 0.6666)])
@pytest.mark.parametrize("in_place", [False, True])
def test_voxelwise(dtype, activation, in_place):
    x, plus = random(3, 2, 101, 103).astype(dtype), random(3, 2, 101, 103).astype(dtype)
    by, bias = random(3).astype(dtype), random(3).astype(dtype)
    s = by[:, None, None, None] * x + bias[:, None, None, None] + plus
    expected = s if activation is None else np.maximum(s, 0) if activation == "relu" else 1.7159 * np.tanh(0.6666 * s)
    out = x if in_place else np.empty_like(x)
    elementwise(out, x, plus, by, bias, activation)
    assert np.allclose(out, expected, rtol=0, atol=1e-5)


def test_voxelwise_what_is_absent_is_left_out():
    x = random(2, 1, 3, 5)
    out = np.empty_like(x)
    elementwise(out, x)
    assert np.array_equal(out, x)
    x[0, 0, 0, 0] = np.nan
    elementwise(out, x, activation="relu")
    assert np.isnan(out[0, 0, 0, 0]) and (out[1] >= 0).all()

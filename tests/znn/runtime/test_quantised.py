"""Volumes of integers of eight bits: from and to float32, convolutions and maxima of them, to the last bit."""
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from znn.codegen import target
from znn.codegen.group import U8
from znn.runtime import arena, arrays, conv
from znn.runtime.groups import max_filter
from znn.runtime.prepared import Convolution
from znn.runtime.quantised import dequantise, fours, quantise

SMALL = st.integers(1, 3)


def bytes_of(elements, channels):
    """(n, elements, z, y, x) as (n, channels, z, y, x)."""
    numbers = np.ascontiguousarray(elements).view(np.uint8).reshape(*elements.shape, 4)
    return np.moveaxis(numbers, -1, 2).reshape(len(elements), -1, *elements.shape[2:])[:, :channels]


def each(numbers):
    return numbers[:, None, None, None]


def test_elements_hold_neighbours_and_zeros_beyond_the_last():
    found = fours(np.int8([[1], [-1], [2], [-128], [5]]))
    assert found.dtype == np.uint32 and found.tolist() == [[0x8002ff01], [0x00000005]]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_numbers_come_back_to_half_a_step_and_beyond_the_ends_to_the_ends(data):
    channels, extent = data.draw(st.integers(1, 9)), data.draw(st.tuples(SMALL, SMALL, st.integers(1, 70)))
    zero, rng = data.draw(st.sampled_from([0, 128])), np.random.default_rng(data.draw(st.integers(0, 99)))
    by = rng.uniform(0.1, 300, channels).astype(np.float32)
    x = (rng.uniform(-400, 400, (channels, *extent)) / each(by)).astype(np.float32)
    held, back = np.full((U8.elements(channels), *extent), 0xffffffff, np.uint32), np.empty_like(x)
    quantise(held, x, by, zero)
    assert np.array_equal(bytes_of(held[None], channels)[0], np.clip(np.rint(x * each(by) + np.float32(zero)), 0, 255))
    assert not bytes_of(held[None], 4 * len(held))[0, channels:].any()
    dequantise(back, held, by, zero)
    low, high = -zero / each(by), (255 - zero) / each(by)
    assert (np.abs(back - np.clip(x, low, high)) <= 0.501 / each(by)).all()
    again = np.empty_like(held)
    quantise(again, back, by, zero)
    assert np.array_equal(again, held), "what integers stand for becomes the same integers"


def test_what_is_not_a_number_becomes_zero():
    out = np.empty((1, 1, 1, 4), np.uint32)
    quantise(out, np.float32([np.nan, np.inf, -np.inf, 2.5]).reshape(1, 1, 1, 4), np.ones(1, np.float32), 0)
    assert out.ravel().tolist() == [0, 255, 0, 2]


def random_convolution(rng, ci, co, taps, extent, dilation):
    x = rng.integers(0, 256, (1, ci, *(n + d * (k - 1) for n, d, k in zip(extent, dilation, taps)))).astype(np.uint8)
    w = rng.integers(-127, 128, (co, ci, *taps)).astype(np.int8)
    sums = F.conv3d(torch.from_numpy(x).double(), torch.from_numpy(w).double(), dilation=dilation).numpy()
    factors = (rng.uniform(30, 60, co) / max(sums.std(), 1)).astype(np.float32)
    return x, w, rng.normal(0, 40, co).astype(np.float32), factors, sums


def after(sums, bias, factors, activation, onto=None):
    """Float32 results, each step rounded as kernels do it; tanh as numpy does it."""
    y = sums.astype(np.float32) * each(factors)
    y = (y if onto is None else y + onto) + each(bias)
    return y if activation is None else np.maximum(y, 0) if activation == "relu" else np.float32(
        activation[0]) * np.tanh(np.float32(activation[1]) * y)


SHAPES = [(48, 36, (1, 3, 3), (2, 7, 61), (1, 1, 1)), (5, 7, (2, 3, 3), (1, 7, 83), (1, 2, 2)),
          (24, 3, (1, 2, 2), (3, 5, 16), (1, 4, 4)), (7, 24, (2, 1, 3), (2, 3, 61), (2, 8, 8)),
          (100, 2, (1, 1, 1), (1, 4, 7), (1, 8, 8)), (1, 1, (1, 1, 1), (1, 1, 1), (1, 1, 1))]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("activation, zero", [("relu", 0), (None, 128)], ids=str)
def test_convolutions_from_integers_to_integers(shape, activation, zero, on_target):
    co, extent, dilation = shape[1], shape[3], shape[4]
    x, w, bias, factors, sums = random_convolution(np.random.default_rng(0), *shape)
    made = Convolution(x.shape, w, bias, dilation, activation, operands=U8, stores=U8, factors=factors, zero=zero)
    y = np.full((1, U8.elements(co), *extent), 0xffffffff, np.uint32)
    made.run(y, fours(x, 1), np.empty(made.scratch_shape, np.uint8))
    expected = np.clip(np.rint(after(sums, bias, factors, activation) + np.float32(zero)), 0, 255)
    assert np.array_equal(bytes_of(y, co), expected)
    assert (bytes_of(y, 4 * y.shape[1])[:, co:] == zero).all(), "what fills the last element up stands for nothing"
    assert min(extent) == 1 or 0.05 < np.mean((expected > 0) & (expected < 255))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("activation", ["relu", None, (1.7, 0.01)], ids=str)
@pytest.mark.parametrize("added", [False, True])
def test_convolutions_from_integers_to_float32(shape, activation, added, on_target):
    co, extent, dilation = shape[1], shape[3], shape[4]
    rng = np.random.default_rng(1)
    x, w, bias, factors, sums = random_convolution(rng, *shape)
    onto = rng.normal(0, 40, (1, co, *extent)).astype(np.float32) if added else None
    expected = after(sums, bias, factors, activation, onto)
    made = Convolution(x.shape, w, bias, dilation, activation, added, operands=U8, factors=factors)
    y = onto if added else np.empty((1, co, *extent), np.float32)
    made.run(y, fours(x, 1), np.empty(made.scratch_shape, np.uint8))
    assert np.array_equal(y, expected) if not isinstance(activation, tuple) else np.allclose(y, expected, atol=1e-5)


@pytest.mark.parametrize("width", [7, 61, 83])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("activation, zero", [("relu", 0), (None, 128), ((127.0, 0.6666), 128)], ids=str)
def test_convolutions_from_float32_to_integers(width, biased, activation, zero, on_target):
    """What a network's first convolution does; but for ties within float32's rounding of the sum, which are few."""
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((1, 3, 2, 61, width)).astype(np.float32), rng.standard_normal((6, 3, 1, 3, 3))
    w, bias = (20 * w).astype(np.float32) if zero == 0 else w.astype(np.float32), rng.standard_normal(6).astype("f4")
    bias = bias if biased else None
    made = Convolution(x.shape, w, bias, activation=activation, stores=U8, zero=zero)
    y = np.empty((1, 2, *arrays.valid(x.shape, w.shape[2:], (1, 1, 1))), np.uint32)
    made.run(y, x, arena.empty(made.scratch_shape, w.dtype))
    plain = conv.forward(x, w, bias, activation=activation) + np.float32(zero)
    apart = np.abs(bytes_of(y, 6) - np.clip(np.rint(plain), 0, 255))
    assert apart.max() <= 1 and apart.mean() < 1e-3


def test_a_constant_volume_stays_constant(on_target):
    x, w, bias, factors, _ = random_convolution(np.random.default_rng(3), 24, 12, (2, 3, 3), (2, 5, 83), (1, 2, 2))
    x[:] = x[:, :, :1, :1, :1]
    made = Convolution(x.shape, w, bias, (1, 2, 2), "relu", operands=U8, stores=U8, factors=factors)
    y = np.empty((1, 3, 2, 5, 83), np.uint32)
    made.run(y, fours(x, 1), np.empty(made.scratch_shape, np.uint8))
    assert (y == y[..., :1, :1, :1]).all()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_maxima_are_those_of_the_integers(data):
    window, dilation = (data.draw(st.tuples(SMALL, SMALL, SMALL)) for _ in range(2))
    extent, channels = data.draw(st.tuples(SMALL, SMALL, st.integers(1, 83))), data.draw(st.integers(1, 9))
    x = np.random.default_rng(4).integers(0, 256, (1, channels, *(n + d * (k - 1) for n, k, d in zip(
        extent, window, dilation)))).astype(np.uint8)
    expected = F.max_pool3d(torch.from_numpy(x).double(), window, 1, 0, dilation).numpy()
    for name in target.available():
        with target.use_target(name):
            out = np.empty((U8.elements(channels), *extent), np.uint32)
            max_filter(out, fours(x, 1)[0], window, dilation, U8)
            assert np.array_equal(bytes_of(out[None], channels), expected), name

"""Passes over volumes of bf16 against the same on what the elements hold."""
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from znn.codegen import target
from znn.codegen.group import BF16
from znn.codegen.voxels import VOXELS
from znn.runtime.groups import elementwise, from_groups, grouped, max_filter, to_groups

SMALL = st.integers(1, 3)


def volume(rng, *shape):
    """Elements, and what they hold."""
    x = rng.standard_normal(shape).astype(np.float32)
    return grouped(x, BF16), torch.from_numpy(x).bfloat16().float().numpy()


def held(elements, channels):
    out = np.empty((channels, *elements.shape[1:]), np.float32)
    from_groups(out, elements)
    return out


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_maxima_are_those_of_the_numbers(data):
    window, dilation = (data.draw(st.tuples(SMALL, SMALL, SMALL)) for _ in range(2))
    extent = data.draw(st.tuples(SMALL, SMALL, st.integers(1, 70)))
    channels = data.draw(st.integers(1, 5))
    x, numbers = volume(np.random.default_rng(0), channels, *(n + d * (k - 1)
                                                              for n, k, d in zip(extent, window, dilation)))
    expected = F.max_pool3d(torch.from_numpy(numbers)[None], window, 1, 0, dilation)[0].numpy()
    for name in target.available():
        with target.use_target(name):
            out = np.zeros((len(x), *extent), np.uint32)
            max_filter(out, x, window, dilation, BF16)
            assert np.array_equal(held(out, channels), expected), name


def test_maxima_at_the_ends_of_the_scale():
    numbers = np.float32([[-np.inf, -1, np.nan, 3, -0.0, 0, -2, np.inf] * 3, [-5, -4, -3, -2, -1, -np.nan, 7, 8] * 3])
    out = np.zeros((1, 1, 1, 23), np.uint32)
    max_filter(out, grouped(numbers[:, None, None], BF16), (1, 1, 2), (1, 1, 1), BF16)
    expected = F.max_pool1d(torch.from_numpy(numbers)[None], 2, 1)[0].numpy()
    assert np.array_equal(held(out, 2)[:, 0, 0], expected, equal_nan=True)


@pytest.mark.parametrize("size", [1, 15, 16, VOXELS - 1, VOXELS, 2 * VOXELS + 37])
@pytest.mark.parametrize("activation", [None, "relu", (1.7, 0.6)], ids=str)
def test_pointwise_passes(on_target, size, activation):
    rng, channels = np.random.default_rng(1), 3
    (x, a), (plus, b) = (volume(rng, channels, 1, 1, size) for _ in range(2))
    by, bias = rng.standard_normal((2, channels)).astype(np.float32)
    whole = a * by[:, None, None, None] + bias[:, None, None, None] + b
    expected = {None: whole, "relu": np.maximum(whole, 0), (1.7, 0.6): 1.7 * np.tanh(0.6 * whole)}[activation]
    for out in (np.zeros_like(x), x):  # elsewhere, and in place
        elementwise(out, x, BF16, plus, by, bias, activation)
        assert np.allclose(held(out, channels), expected, rtol=2**-8, atol=1e-6)
        assert not (out[-1] >> 16).any(), "what fills the last element up stays zero"


@pytest.mark.parametrize("channels, extent", [(1, (1, 1, 1)), (3, (2, 5, 7)), (4, (1, 40, 300))], ids=str)
def test_from_float32_and_back(channels, extent):
    x = np.random.default_rng(2).standard_normal((channels, *extent)).astype(np.float32)
    out = np.full(((channels + 1) // 2, *extent), 0xffffffff, np.uint32)
    to_groups(out, x)
    assert np.array_equal(out, grouped(x, BF16))
    assert np.array_equal(held(out, channels), torch.from_numpy(x).bfloat16().float().numpy())
    assert channels % 2 == 0 or not (out[-1] >> 16).any()

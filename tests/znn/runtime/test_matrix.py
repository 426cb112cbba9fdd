"""Narrow convolutions on the matrix unit against double precision, and against the same on vectors."""
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from znn.codegen import matrix, target
from znn.codegen.group import BF16, U8
from znn.codegen.plan import PLAIN
from znn.runtime import arena, arrays, conv
from znn.runtime.groups import grouped
from znn.runtime.matrix import MatrixConvolution
from znn.runtime.prepared import Convolution, mixing
from znn.runtime.quantised import fours

SHAPES = [(48, 36, (1, 3, 3), (2, 7, 61), (1, 1, 1)), (5, 7, (2, 3, 3), (1, 7, 83), (1, 2, 2)),
          (24, 3, (1, 2, 2), (3, 5, 16), (1, 4, 4)), (7, 24, (2, 1, 3), (2, 3, 7), (2, 8, 8)),
          (100, 2, (1, 1, 1), (1, 4, 83), (1, 8, 8)), (66, 120, (1, 1, 3), (1, 2, 40), (1, 1, 1)),
          (1, 1, (1, 1, 1), (1, 1, 1), (1, 1, 1))]  # input and output channels, taps, extent of y, dilation


@pytest.fixture(params=[BF16, U8], ids=lambda g: g.name)
def group(request):
    if not matrix.supports(target.current(), request.param):
        pytest.skip(f"this processor has no matrix unit for {request.param.name}, or the system does not let us use it")
    return request.param


def operands(rng, group, ci, co, taps, extent, dilation):
    """x, w, bias and factors, which only integers have."""
    shape = (2, ci, *(n + d * (k - 1) for n, d, k in zip(extent, dilation, taps)))
    if group is BF16:
        x, w, bias = (rng.standard_normal(s).astype(np.float32) for s in (shape, (co, ci, *taps), co))
        x, w = (torch.from_numpy(a).bfloat16().float().numpy() for a in (x, w))
        return x, w, bias, None
    x, w = rng.integers(0, 256, shape).astype(np.uint8), rng.integers(-127, 128, (co, ci, *taps)).astype(np.int8)
    factors = rng.uniform(0.5, 1, co) * 40 / np.sqrt(w[0].size * 2e8)
    return x, w, rng.normal(0, 40, co).astype(np.float32), factors.astype(np.float32)


def computed(group, x, w, bias, factors, dilation, activation, stores):
    made = Convolution(x.shape, w, bias, dilation, activation, operands=group, stores=stores, factors=factors)
    extent = arrays.valid(x.shape, w.shape[2:], dilation)
    y = np.full((len(x), stores.elements(len(w)), *extent), 0xffffffff, np.uint32) if stores else np.full(
        (len(x), len(w), *extent), np.nan, np.float32)
    made.run(y, grouped(x, BF16, 1) if group is BF16 else fours(x, 1), np.empty(made.scratch_shape, np.float32))
    return y


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("activation", ["relu", None, (1.7, 0.6)], ids=str)
def test_float32_results_are_those_of_double_precision(group, shape, activation):
    dilation = shape[-1]
    x, w, bias, factors = operands(np.random.default_rng(0), group, *shape)
    exact = F.conv3d(*(torch.from_numpy(a).double() for a in (x, w)), dilation=dilation).numpy()
    terms = F.conv3d(*(torch.from_numpy(np.abs(a.astype(float))) for a in (x, w)), dilation=dilation).numpy()
    by = np.ones_like(bias) if factors is None else factors
    exact = exact * by[:, None, None, None] + bias[:, None, None, None].astype(float)
    expected = {None: exact, "relu": np.maximum(exact, 0), (1.7, 0.6): 1.7 * np.tanh(0.6 * exact)}[activation]
    y = computed(group, x, w, bias, factors, dilation, activation, None)
    assert (np.abs(y - expected) <= 1e-5 + 1e-6 * np.abs(exact) + 2e-6 * terms * by[:, None, None, None]).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("stores", [True, False])
def test_results_are_those_of_vectors(group, shape, stores, monkeypatch):
    """Of integers to the last bit, of bf16 to the order of its sums."""
    x, w, bias, factors = operands(np.random.default_rng(1), group, *shape)
    stores = group if stores else None
    found = computed(group, x, w, bias, factors, shape[-1], "relu", stores)
    monkeypatch.setenv("ZNN_MATRIX_UNIT", "off")
    monkeypatch.setenv("ZNN_WINOGRAD", "off")  # bf16 at points is less exact
    expected = computed(group, x, w, bias, factors, shape[-1], "relu", stores)
    if group is U8:
        assert np.array_equal(found, expected)
    elif stores:
        found, expected = ((a.view(np.uint16).astype(np.uint32) << 16).view(np.float32) for a in (found, expected))
        assert np.allclose(found, expected, rtol=2**-7, atol=1e-4)
    else:
        assert np.allclose(found, expected, rtol=1e-5, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_sums_of_integers_are_exact_whatever_the_shape(data):
    if not matrix.supports(target.current(), U8):
        pytest.skip("this processor has no matrix unit for integers, or the system does not let us use it")
    small, ci, co = st.tuples(*[st.integers(1, 3)] * 3), data.draw(st.integers(1, 140)), data.draw(st.integers(1, 70))
    extent = (data.draw(st.integers(1, 2)), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 83)))
    shape = (ci, co, data.draw(small), extent, data.draw(small))
    x, w, _, _ = operands(np.random.default_rng(2), U8, *shape)
    y = computed(U8, x, w, np.zeros(co, np.float32), np.ones(co, np.float32), shape[-1], None, None)
    sums = F.conv3d(torch.from_numpy(x).double(), torch.from_numpy(w).double(), dilation=shape[-1]).numpy()
    assert np.array_equal(y, sums.astype(np.float32))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("switch", ["on", "off"])
def test_channels_mixed_at_once_are_those_of_two_convolutions(shape, switch, monkeypatch):
    if switch == "on" and not matrix.supports(target.current(), BF16):
        pytest.skip("this processor has no matrix unit for bf16, or the system does not let us use it")
    monkeypatch.setenv("ZNN_MATRIX_UNIT", switch)
    rng, dilation, co = np.random.default_rng(5), shape[-1], shape[1]
    x, w, bias, _ = operands(rng, BF16, *shape)
    mix, mix_bias = rng.standard_normal((3, co, 1, 1, 1)).astype(np.float32), np.float32([1, -2, 3])
    made = mixing(x.shape, w, bias, dilation, "relu", BF16, mix, mix_bias)
    assert isinstance(made, Convolution) == (switch == "on")
    y = np.full((len(x), 3, *arrays.valid(x.shape, w.shape[2:], dilation)), np.nan, np.float32)
    made.run(y, grouped(x, BF16, 1), arena.empty(made.scratch_shape, np.dtype(np.float32)))
    inner = F.conv3d(*(torch.from_numpy(a).double() for a in (x, w, bias)), dilation=dilation).relu()
    expected = F.conv3d(inner, *(torch.from_numpy(a).double() for a in (mix, mix_bias))).numpy()
    tolerance = 1e-5 if switch == "on" else 0.02  # on vectors maybe at points, with rounded weights
    assert np.abs(y - expected).max() <= tolerance * (1 + np.abs(expected).max())


def test_a_constant_volume_stays_constant(group):
    x, w, bias, factors = operands(np.random.default_rng(3), group, *SHAPES[0])
    x[:] = x[:1, :, :1, :1, :1]
    y = computed(group, x, w, bias, factors, (1, 1, 1), "relu", group)
    assert (y == y[:1, ..., :1, :1, :1]).all()


def test_threads_have_registers_of_their_own(group):
    shape = SHAPES[0]
    x, w, bias, factors = operands(np.random.default_rng(4), group, *shape)
    one = lambda _: computed(group, x, w, bias, factors, shape[-1], "relu", group)  # noqa: E731
    expected = one(0)
    with ThreadPoolExecutor(4) as pool:
        assert all(np.array_equal(y, expected) for y in pool.map(one, range(16)))


def test_weights_begin_on_a_cache_line(group):
    way = MatrixConvolution((1, 5, 1, 1, 16), 7, (1, 1, 1), (1, 1, 1), group, PLAIN, target.current())
    w = np.ones((7, 5, 1, 1, 1), np.float32 if group is BF16 else np.int8)
    assert all(way.weights(w).ctypes.data % arena.LINE == 0 for _ in range(8))


def test_the_switch_turns_to_vectors(group, monkeypatch):
    way = lambda: conv.forward_way((1, 48, 1, 8, 64), (36, 48, 1, 3, 3), (1, 1, 1), PLAIN, group)[0]  # noqa: E731
    assert isinstance(way(), MatrixConvolution)
    monkeypatch.setenv("ZNN_MATRIX_UNIT", "off")
    assert not isinstance(way(), MatrixConvolution)


def test_other_targets_do_not_use_it(group):
    with target.use_target("generic"):
        assert not isinstance(conv.forward_way((1, 48, 1, 8, 64), (36, 48, 1, 3, 3), (1, 1, 1), PLAIN, group)[0],
                              MatrixConvolution)

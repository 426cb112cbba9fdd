"""Convolutions prepared once and voxel-wise passes against what they stand for."""
import numpy as np
import pytest

from znn.runtime import arena, arrays, conv
from znn.runtime.elementwise import elementwise
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

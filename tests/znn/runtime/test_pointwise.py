"""The gradient before the activation, its zeros and its sums, against numpy in float64."""
import numpy as np
import pytest

from tests.znn.runtime.threads import for_one_thread_and_all
from znn.runtime import pointwise

A, B = 1.7159, 0.6666
DERIVATIVES = [(None, np.ones_like), ("relu", lambda y: y > 0), ((A, B), lambda y: B * (A - y * y / A))]


def make(shape, dtype=np.float32):
    """A gradient, and an output of which part is zero."""
    rng = np.random.default_rng(0)
    return rng.standard_normal(shape).astype(dtype), np.maximum(rng.uniform(-1, 1, shape), -0.0).astype(dtype)


def run(grad, y, activation, left=16, right=16):
    """What `gradient` makes of memory that holds NaN: the array and its sums."""
    pitch = -(-(left + grad.shape[4] + right) // 16) * 16
    out = np.full((*grad.shape[:3], grad.shape[3] | 1, pitch), np.nan, grad.dtype)
    return out, pointwise.gradient(out, grad, y, activation, left)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("activation, derivative", DERIVATIVES, ids=["none", "relu", "tanh"])
@pytest.mark.parametrize("extent, left", [((7, 61, 83), 16), ((1, 2, 3), 0), ((1, 400, 33), 32), ((2, 1, 1), 16),
                                          ((1, 3, 9001), 16)], ids=str)
def test_gradient(extent, left, activation, derivative, dtype):
    grad, y = make((2, 3, *extent), dtype)
    out, sums = run(grad, y, activation, left)
    expected = grad.astype(np.float64) * derivative(y.astype(np.float64))
    accuracy = 64 * np.finfo(dtype).eps
    rows = out[:, :, :, :extent[1]]
    assert np.allclose(rows[..., left:left + extent[2]], expected, rtol=accuracy, atol=accuracy)
    assert not rows[..., :left].any() and not rows[..., left + extent[2]:].any()
    assert np.isnan(out[:, :, :, extent[1]:]).all()  # untouched
    assert sums.dtype == dtype and sums.shape == (3,)
    assert np.allclose(sums, expected.sum((0, 2, 3, 4)), rtol=0, atol=accuracy * np.abs(expected).sum())


def test_a_gradient_that_is_not_finite_stays_where_it_belongs():
    grad, y = make((1, 2, 2, 9, 40))
    y[0, 0, 0, 0, 0], grad[0, 0, 0, 0, 0] = 0, np.nan  # dropped by ReLU
    y[0, 1, 1, 3, 17], grad[0, 1, 1, 3, 17] = 1, np.inf
    out, sums = run(grad, y, "relu")
    assert np.isinf(out[:, :, :, :9]).sum() == 1 and not np.isnan(out[:, :, :, :9]).any()
    assert np.isfinite(sums[0]) and np.isinf(sums[1])


def test_never_reads_or_writes_outside_of_its_operands():
    for width in (1, 15, 16, 17, 50):
        grad, y = make((1, 2, 2, 5, width))
        walled = []
        for a in (grad, y):
            wall = np.full(a.size + 256, np.inf, a.dtype)
            wall[128:-128] = a.ravel()
            walled.append(wall[128:-128].reshape(a.shape))
        for plain, inside in zip(run(grad, y, "relu"), run(*walled, "relu")):
            assert np.array_equal(plain, inside, equal_nan=True)


@pytest.mark.parametrize("shape", [(1, 2, 1, 100, 100), (1, 1, 3, 301, 299)], ids=str)
def test_same_bits_whatever_the_number_of_threads(shape):
    one, all_ = for_one_thread_and_all(lambda: run(*make(shape), "relu"))
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one, all_))

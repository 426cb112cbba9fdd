"""Max filtering and its gradient against torch in float64."""
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.znn.runtime.threads import for_one_thread_and_all
from znn.runtime import arena, pool

ODD = (7, 61, 83)
CASES = [((1, 2, 2), (1, 1, 1)), ((1, 2, 2), (1, 2, 2)), ((1, 2, 2), (1, 4, 4)), ((2, 2, 2), (1, 4, 4)),
         ((1, 2, 2), (1, 16, 16)), ((3, 1, 2), (2, 1, 7)), ((3, 3, 3), (1, 2, 3)), ((1, 1, 1), (1, 1, 1)),
         ((7, 1, 1), (1, 1, 1)), ((1, 1, 3), (1, 1, 41))]


def torchs(x, grad, window, dilation):
    """torch's output and gradient for x, in float64."""
    t = torch.from_numpy(x.astype(np.float64)).requires_grad_()
    y = F.max_pool3d(t, window, stride=1, dilation=dilation)
    return y.detach().numpy(), torch.autograd.grad(y, t, torch.from_numpy(grad.astype(np.float64)))[0].numpy()


def ours(x, grad, window, dilation):
    y, places = pool.max_filter_with_places(x, window, dilation)
    return y, pool.max_filter_gradient(x.shape, places, grad, window, dilation)


def make(shape, window, dilation, dtype, seed=0):
    """An input and a gradient for the output."""
    rng = np.random.default_rng(seed)
    extent = [n - d * (k - 1) for n, d, k in zip(shape[2:], dilation, window)]
    return [rng.standard_normal(s).astype(dtype) for s in (shape, (*shape[:2], *extent))]


def compare(x, grad, window, dilation):
    y, dx = ours(x, grad, window, dilation)
    expected, expected_dx = torchs(x, grad, window, dilation)
    assert y.dtype == dx.dtype == x.dtype
    assert np.array_equal(y, expected) and np.array_equal(pool.max_filter(x, window, dilation), y)
    assert np.allclose(dx, expected_dx, rtol=0, atol=1e-5 if x.dtype == np.float32 else 1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("window, dilation", CASES, ids=str)
def test_output_and_gradient(window, dilation, dtype):
    compare(*make((2, 3, *ODD), window, dilation, dtype), window, dilation)


@pytest.mark.parametrize("extent", [(1, 2, 2), (1, 2, 3), (1, 9, 5), (2, 3, 17), (1, 5, 33), (1, 300, 2), (1, 3, 9001)],
                         ids=str)
def test_rows_shorter_and_longer_than_vectors_and_strips(extent):
    compare(*make((1, 2, *extent), (1, 2, 2), (1, 1, 1), np.float32), (1, 2, 2), (1, 1, 1))


@pytest.mark.parametrize("window", [(5, 5, 10), (1, 1, 253), (3, 5, 17)], ids=str)
def test_as_many_taps_as_a_byte_counts(window):
    shape = (1, 2, *(n + k for n, k in zip((2, 3, 20), window)))
    compare(*make(shape, window, (1, 1, 1), np.float32), window, (1, 1, 1))


def test_more_taps_have_no_gradient():
    x = np.zeros((1, 1, 4, 8, 8), np.float32)
    with pytest.raises(ValueError, match=r"windows of up to 255 taps, found 4 x 8 x 8 = 256"):
        pool.max_filter_with_places(x, (4, 8, 8), (1, 1, 1))
    assert pool.max_filter(x, (4, 8, 8), (1, 1, 1)).shape == (1, 1, 1, 1, 1)


@pytest.mark.parametrize("window, dilation", [((1, 2, 2), (1, 1, 1)), ((2, 2, 2), (1, 4, 4)), ((3, 3, 3), (1, 1, 2))],
                         ids=str)
def test_ties_keep_the_earlier_voxel(window, dilation):
    """Of few values, so that most windows hold their maximum several times; some of it minus infinity."""
    x, grad = make((2, 3, *ODD), window, dilation, np.float64)
    levels = np.array([-np.inf, 0, 1])
    compare(levels[np.random.default_rng(1).integers(0, 3, x.shape)], grad, window, dilation)


def test_the_gradient_of_a_constant():
    _, dx = ours(np.ones((1, 1, 1, 2, 3), np.float32), np.array([[[[[2, 3]]]]], np.float32), (1, 2, 2), (1, 1, 1))
    assert np.array_equal(dx[0, 0, 0], [[2, 3, 0], [0, 0, 0]])


@pytest.mark.parametrize("window", [(1, 2, 2), (2, 2, 2)], ids=str)
def test_nan_wins(window):
    x, grad = make((2, 3, *ODD), window, (1, 2, 2), np.float32)
    x[np.random.default_rng(2).random(x.shape) < 0.1] = np.nan
    y, dx = ours(x, grad, window, (1, 2, 2))
    expected, expected_dx = torchs(x, grad, window, (1, 2, 2))
    assert np.isnan(y).any() and np.array_equal(y, expected, equal_nan=True)
    assert np.allclose(dx, expected_dx, rtol=0, atol=1e-5)


def test_a_gradient_that_is_not_finite_stays_where_it_belongs():
    x, grad = make((1, 2, 2, 9, 40), (1, 2, 2), (1, 1, 1), np.float32)
    grad[0, 1, 0, 3, 17], grad[0, 0, 1, 0, 0] = np.nan, np.inf
    _, dx = ours(x, grad, (1, 2, 2), (1, 1, 1))
    assert np.count_nonzero(np.isnan(dx)) == np.count_nonzero(np.isinf(dx)) == 1


def within_walls(content, walls, value):
    """An array like `content` amid memory that holds `value`, which is added to `walls`."""
    memory = np.full(content.size + 512, value, content.dtype)
    walls.append((memory[:256], memory[-256:]))
    inside = memory[256:-256].reshape(content.shape)
    inside[:] = content
    return inside


@pytest.mark.parametrize("width", [5, 16, 17, 31, 50])
def test_never_reads_or_writes_outside_of_its_operands(width, monkeypatch):
    window, dilation = (2, 2, 2), (1, 3, 3)
    operands, walls = make((1, 2, 3, 9, width), window, dilation, np.float32), []
    plain = ours(*operands, window, dilation)
    walled = [within_walls(a, walls, np.inf) for a in operands]
    monkeypatch.setattr(arena, "empty", lambda shape, dtype: within_walls(np.zeros(shape, dtype), walls, 77))
    for expected, found in zip(plain, ours(*walled, window, dilation)):
        assert np.isfinite(found).all() and np.array_equal(expected, found)
    assert len(walls) == 5 and all((side == (np.inf if n < 2 else 77)).all() for n, w in enumerate(walls) for side in w)


@pytest.mark.parametrize("window, dilation", [((1, 2, 2), (1, 1, 1)), ((2, 2, 2), (1, 4, 4))], ids=str)
def test_same_bits_whatever_the_number_of_threads(window, dilation):
    x, grad = make((1, 1, 3, 151, 149), window, dilation, np.float32)
    one, all_ = for_one_thread_and_all(lambda: ours(x, grad, window, dilation))
    assert all(np.array_equal(a, b) for a, b in zip(one, all_))

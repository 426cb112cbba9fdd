"""Max filtering against torch."""
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from znn.runtime import pool


@pytest.mark.parametrize("window, dilation", [
    ((1, 2, 2), (1, 1, 1)), ((1, 2, 2), (1, 4, 4)), ((2, 2, 2), (1, 4, 4)), ((3, 1, 2), (2, 1, 7)),
    ((1, 1, 1), (1, 1, 1))])
def test_forward_and_backward(window, dilation):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 7, 31, 43))
    t = torch.from_numpy(x).requires_grad_()
    reference = F.max_pool3d(t, window, stride=1, dilation=dilation)
    y = pool.max_filter(x, window, dilation)
    assert np.array_equal(y, reference.detach().numpy())
    grad = rng.standard_normal(y.shape)
    reference.backward(torch.from_numpy(grad))
    dx = pool.max_filter_gradient(x, y, grad, window, dilation)
    assert np.allclose(dx, t.grad.numpy(), atol=1e-12)


def test_ties_keep_the_earlier_voxel():
    x = np.ones((1, 1, 1, 2, 3), np.float32)
    y = pool.max_filter(x, (1, 2, 2), (1, 1, 1))
    dx = pool.max_filter_gradient(x, y, np.array([[[[[2.0, 3.0]]]]], np.float32), (1, 2, 2), (1, 1, 1))
    assert np.array_equal(dx[0, 0, 0], [[2, 3, 0], [0, 0, 0]])


def test_nan_wins():
    x = np.zeros((1, 1, 1, 3, 3), np.float32)
    x[..., 2, 2] = np.nan
    y = pool.max_filter(x, (1, 2, 2), (1, 1, 1))
    assert np.isnan(y[..., 1, 1]) and np.array_equal(y[0, 0, 0, 0], [0, 0])

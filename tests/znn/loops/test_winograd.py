"""The transforms compute a convolution and the gradient for its taps."""
import itertools

import numpy as np
import pytest

from znn.loops.winograd import POINTS, matrices

SIZES = [(m, r) for m, r in itertools.product(range(1, 6), range(1, 6)) if m + r - 1 in POINTS]


@pytest.mark.parametrize("outputs, taps", SIZES)
def test_convolution_and_its_gradient(outputs, taps):
    A, G, Bt = matrices(outputs, taps)
    rng = np.random.default_rng(0)
    d, w, g = rng.standard_normal(outputs + taps - 1), rng.standard_normal(taps), rng.standard_normal(outputs)
    np.testing.assert_allclose(A.T @ ((G @ w) * (Bt @ d)), np.correlate(d, w, "valid"), atol=1e-12)
    np.testing.assert_allclose(G.T @ ((A @ g) * (Bt @ d)), np.correlate(d, g, "valid"), atol=1e-12)


def test_known_transform():
    """F(2, 3) has points 0, 1, -1 and infinity, as in Lavin and Gray, but for signs and factors moved into G."""
    A, _, Bt = matrices(2, 3)
    assert A.T.tolist() == [[1, 1, 1, 0], [0, 1, -1, 1]]
    assert Bt.tolist() == [[-1, 0, 1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, -1, 0, 1]]


def test_float32_loses_little():
    """Rounding errors of four rows of three taps, summed over 108 terms, are below twice those of the direct sum."""
    A, G, Bt = (m.astype(np.float32) for m in matrices(4, 3))
    rng = np.random.default_rng(1)
    d, w = (rng.standard_normal(s).astype(np.float32) for s in ((500, 108, 6), (108, 3)))
    windows = np.lib.stride_tricks.sliding_window_view(d, 3, axis=2)
    exact = np.einsum("nkit,kt->ni", windows.astype(float), w.astype(float))
    found, direct = np.zeros((500, 6), np.float32), np.zeros((500, 4), np.float32)
    for k in range(108):  # one after the other, as kernels do
        found += (d[:, k] @ Bt.T) * (G @ w[k])
        for t in range(3):
            direct += windows[:, k, :, t] * w[k, t]
    error = [np.sqrt(((y - exact) ** 2).mean()) for y in (found @ A, direct)]
    assert error[0] < 2 * error[1]


def test_too_many_points():
    with pytest.raises(ValueError, match=r"no points for 9 outputs of 3 taps: outputs \+ taps - 1 is one of 3, 4"):
        matrices(9, 3)

"""Fewer multiplications for a convolution along one axis: evaluate at points, multiply, interpolate.

m outputs of a filter with r taps are the coefficients of a product of polynomials, transposed: m + r - 1 products of
values at as many points do what takes m r multiplications directly (Toom 1963, Cook 1966; Winograd, "Arithmetic
complexity of computations", 1980; for networks Lavin and Gray, arXiv 1509.09308)::

    y[i] = sum_k d[i + k] w[k]        y = A^T ((G w) * (B^T d))
    w'[k] = sum_i d[i + k] g[i]       w' = G^T ((A g) * (B^T d))

The second line is the gradient for the taps.  Points in pairs +-a make the transforms cheap; those here, with infinity
as the last, were chosen for their rounding errors in float32, which stay below twice those of the direct sum.
"""
from functools import cache

import numpy as np

POINTS = {3: (1, -1), 4: (0, 1, -1), 5: (1, -1, .5, -.5), 6: (0, .75, -.75, 1.5, -1.5)}  # beside infinity


@cache
def matrices(outputs, taps):
    """The three transforms of `outputs` neighbouring results of a filter with `taps` taps.

    Returns
    -------
    A : ndarray, (points, outputs)
    G : ndarray, (points, taps)
    Bt : ndarray, (points, points)
        In float64, with points = outputs + taps - 1.

    Raises
    ------
    ValueError
        If no points are known for so many.
    """
    count = outputs + taps - 1
    if count not in POINTS:
        raise ValueError(f"no points for {outputs} outputs of {taps} taps: outputs + taps - 1 is one of "
                         f"{', '.join(map(str, POINTS))}")
    points = np.array(POINTS[count], float)
    others = [np.delete(points, j) for j in range(len(points))]
    lagrange = [[*np.poly(o)[::-1], 0] for o in others]  # zero at the other points; np.poly has the constant last
    scale = np.array([np.prod(p - o) for p, o in zip(points, others)])
    infinity = lambda n: np.eye(n)[-1:]  # noqa: E731  the leading coefficient
    values = lambda n: np.vander(points, n, increasing=True)  # noqa: E731
    return (np.vstack([values(outputs), infinity(outputs)]),
            np.vstack([values(taps) / scale[:, None], infinity(taps)]),
            np.vstack([*lagrange, np.poly(points)[::-1]]))

"""Smooth random fields: uniform cubic B-splines over random control points.

Four weights a point instead of matrix products: cheap, and no BLAS threads that would compete with training.
"""
import numpy as np


class Spline:
    """Values at fixed positions along one axis from control points along it.

    Parameters
    ----------
    positions : sequence of floats, at least 0
    spacing : float
        Distance of control points in the unit of `positions`, about the size of the field's features; control
        point i stands at ``(i - 1) * spacing``.

    Attributes
    ----------
    controls : int
        How many control points the positions need.
    weights : (len(positions), 4)
        Of control points cell..cell+3; scaled so that independent unit-variance control points give unit variance
        at each position.
    """

    def __init__(self, positions, spacing):
        t = np.asarray(positions, float) / spacing
        self.cell = np.floor(t).astype(int)
        self.controls = int(self.cell.max()) + 4
        u = t - self.cell
        basis = np.stack([(1 - u) ** 3, 4 - 3 * u ** 2 * (2 - u), 1 + 3 * u * (1 + u - u ** 2), u ** 3], axis=1)
        self.weights = basis / np.sqrt(np.square(basis).sum(axis=1, keepdims=True))

    def along(self, controls, axis):
        """Values at the positions; the `axis` of control points becomes one of positions."""
        last = np.moveaxis(controls, axis, -1)
        values = sum(last[..., self.cell + k] * self.weights[:, k] for k in range(4))
        return np.moveaxis(values, -1, axis)


class SplinePlanes:
    """Splines over the rows and columns of a picture.

    Parameters
    ----------
    shape : (y, x)
    resolution : (y, x)
        Size of a pixel in the unit of `spacing`.
    spacing : float
    """

    def __init__(self, shape, resolution, spacing):
        self.rows, self.columns = (Spline(np.arange(n) * r, spacing) for n, r in zip(shape, resolution))

    def draw(self, rng, *leading):
        """Random control points (*leading, rows, columns)."""
        return rng.standard_normal((*leading, self.rows.controls, self.columns.controls))

    def values(self, controls):
        """The fields (..., Y, X) of control points (..., rows, columns)."""
        return self.columns.along(self.rows.along(controls, -2), -1)


def smooth_plane(rng, shape, spacing, count=1):
    """`count` independent smooth fields of unit variance, (count, Y, X) float32, `spacing` in pixels."""
    planes = SplinePlanes(shape, (1.0, 1.0), spacing)
    return planes.values(planes.draw(rng, count)).astype(np.float32)

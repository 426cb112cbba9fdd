"""Smooth random fields: uniform cubic B-splines over random control points."""
import numpy as np


def spline_weights(positions, spacing):
    """Weights of control points for values at `positions`, a (len(positions), controls) matrix; each row sums to 1.

    Positions are at least 0, in the unit of `spacing`; control point i stands at ``(i - 1) * spacing``.
    """
    t = np.asarray(positions, float) / spacing
    cell = np.floor(t).astype(int)
    u = t - cell
    parts = ((1 - u) ** 3, 3 * u ** 3 - 6 * u ** 2 + 4, -3 * u ** 3 + 3 * u ** 2 + 3 * u + 1, u ** 3)
    weights = np.zeros((len(t), cell.max() + 4))
    for k, part in enumerate(parts):
        weights[np.arange(len(t)), cell + k] = part / 6
    return weights


def unit_weights(positions, spacing):
    """`spline_weights` scaled so that independent unit-variance control points give unit variance at each position."""
    weights = spline_weights(positions, spacing)
    return weights / np.sqrt(np.square(weights).sum(axis=1, keepdims=True))


def smooth_plane(rng, shape, spacing, count=1):
    """`count` independent smooth fields of unit variance, (count, Y, X) float32.

    Parameters
    ----------
    rng : numpy Generator
    shape : (y, x)
    spacing : float
        Distance of control points in pixels, about the size of the field's features.
    """
    rows, columns = (unit_weights(np.arange(n), spacing) for n in shape)
    controls = rng.standard_normal((count, rows.shape[1], columns.shape[1]))
    return (rows @ controls @ columns.T).astype(np.float32)

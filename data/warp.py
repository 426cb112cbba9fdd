"""Augmentation that moves voxels within their sections: misaligned sections and elastic deformation.

Sections move in the plane only; image, boundary map and target move by the same draw. Misalignment moves whole
pixels and is exact. Where a voxel comes from outside of the volume the image is mirrored and the target ignored,
so no label is invented.
"""
import math
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from data.smooth import smooth_plane

FARTHEST_SIGMAS = 3.0


@dataclass(frozen=True)
class Warp:
    """Where voxels of a patch come from.

    moves : (Z, 2) int array
        For each section of the input, (y, x) pixels.
    field : (2, Y, X) float array or None
        Added for every section; pixels.
    """

    moves: np.ndarray
    field: np.ndarray | None

    @property
    def margin(self):
        """Pixels that have to be read around the patch in y and x."""
        far = int(np.abs(self.moves).max())
        return far if self.field is None else far + math.ceil(np.abs(self.field).max())

    def apply(self, values, begin, shape, order):
        """The warped part of a patch.

        Parameters
        ----------
        values : (Z, Y + 2 margin, X + 2 margin) array
            Read with `margin` more pixels on all four sides.
        begin, shape : (z, y, x)
            The part of the patch that `values` covers without its margin.
        order : 0 or 1
            Nearest voxel (targets) or linear interpolation (images).
        """
        moves = self.moves[begin[0]:begin[0] + shape[0]] + self.margin
        if self.field is None:
            return np.stack([section[y:y + shape[1], x:x + shape[2]] for section, (y, x) in zip(values, moves)])
        rows, columns = (slice(b, b + n) for b, n in zip(begin[1:], shape[1:]))
        places = np.indices(shape[1:]) + self.field[:, rows, columns]
        return np.stack([ndimage.map_coordinates(section, places + move[:, None, None], order=order, mode="nearest")
                         for section, move in zip(values, moves)])


def draw_warp(augmentation, shape, elastic_rng, misalign_rng):
    """Draw the warp of a patch whose input has `shape`, or None when nothing moves."""
    moves = draw_moves(augmentation, shape[0], misalign_rng)
    field = None
    if elastic_rng.random() < augmentation.elastic_p:
        sigma, limit = augmentation.elastic_sigma_px, FARTHEST_SIGMAS * augmentation.elastic_sigma_px
        field = smooth_plane(elastic_rng, shape[1:], augmentation.elastic_spacing_px, count=2) * sigma
        field = np.clip(field, -limit, limit)
    return Warp(moves, field) if field is not None or moves.any() else None


def draw_moves(augmentation, sections, rng):
    """Misalignment as (sections, 2) pixels: a slip moves one section, a shift moves one and all that follow.

    A single section has nothing to be misaligned with and stays.
    """
    moves = np.zeros((sections, 2), int)
    coins = rng.random(2)
    if sections < 2:
        return moves
    if coins[0] < augmentation.slip_p:
        moves[rng.integers(sections)] += _step(rng, augmentation.misalign_max_px)
    if coins[1] < augmentation.shift_p:
        moves[rng.integers(1, sections):] += _step(rng, augmentation.misalign_max_px)
    return moves


def _step(rng, farthest):
    """(y, x) uniform in -farthest..farthest, but never (0, 0)."""
    width = 2 * farthest + 1
    step = np.array(divmod(int(rng.integers(1, width * width)), width))
    return np.where(step > farthest, step - width, step)

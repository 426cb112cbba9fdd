"""How a convolution is shared among the tiles of a matrix unit (`znn.codegen.matrix`), and weights laid out for them.

Tiles at the end of a range begin earlier, so that they end with it.  What a step has summed before has weights of zero.
"""
from dataclasses import dataclass

import numpy as np

SIDE = 16  # rows of a register, and words of one


@dataclass(frozen=True)
class Tiling:
    """How outputs and elements of a convolution are shared among tiles, about equally.

    Attributes
    ----------
    elements, outputs : int
        Of a voxel of the input, and channels of the output.
    taps : (int, int, int)
    """

    elements: int
    outputs: int
    taps: tuple

    @property
    def depth(self):
        """Elements that a step sums."""
        return -(-self.elements // -(-self.elements // SIDE))

    @property
    def high(self):
        """Tiles of outputs of a block."""
        least = -(-self.outputs // SIDE)
        return 1 if least == 1 else 3 if least % 2 or least % 3 == 0 else 2

    @property
    def height(self):
        """Outputs of a tile; where there are several, they are stored four at a time."""
        many = -(-self.outputs // (SIDE * self.high)) * self.high
        return self.outputs if many == 1 else -(-self.outputs // (4 * many)) * 4

    @property
    def steps(self):
        """First element of every step."""
        return [min(i, self.elements - self.depth) for i in range(0, self.elements, self.depth)]

    @property
    def tops(self):
        """First output of every tile, a multiple of `high` of them."""
        many = -(-self.outputs // (self.height * self.high)) * self.high
        return [min(i * self.height, self.outputs - self.height) for i in range(many)]

    def packed(self, w):
        """Weights, elements (out, elements, kz, ky, kx), as the kernel reads them: a line for each output of a tile.

        Returns
        -------
        ndarray of uint32, (tiles, kz, ky, kx, steps, height, 16)
        """
        out = np.zeros((len(self.tops), *self.taps, len(self.steps), self.height, SIDE), np.uint32)
        for tile, top in zip(out, self.tops):
            for s, first in enumerate(self.steps):
                summed = s * self.depth - first
                part = w[top:top + self.height, first + summed:first + self.depth]
                tile[..., s, :, summed:self.depth] = part.transpose(2, 3, 4, 0, 1)
        return out

    def mixing(self, w):
        """Weights of sums over outputs, (mixes, out), as the kernel reads them: zero for what is computed again.

        Returns
        -------
        ndarray of float32, (tiles, height, mixes)
        """
        table, done = np.zeros((len(self.tops), self.height, len(w)), np.float32), 0
        for tile, top in zip(table, self.tops):
            first, end = max(top, done), top + self.height
            tile[first - top:] = w[:, first:end].T
            done = end
        return table

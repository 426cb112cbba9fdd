"""Flips and the transpose of x and y: exact permutations of voxels, and what they do to a patch's geometry."""
from dataclasses import dataclass

import numpy as np

from data.errors import WrongSetting
from data.roi import Roi, triple


@dataclass(frozen=True)
class Orientation:
    """Flip along some axes, then swap y and x.

    flip_zyx : (bool, bool, bool)
    transpose : bool
    """

    flip_zyx: tuple = (False, False, False)
    transpose: bool = False

    def apply(self, array):
        """The last three axes (z, y, x) of `array` flipped and transposed, as a copy; no value changes."""
        steps = tuple(slice(None, None, -1 if flip else 1) for flip in self.flip_zyx)
        turned = array[(..., *steps)]
        return np.array(turned.swapaxes(-1, -2) if self.transpose else turned, order="C")

    def undo(self, array):
        """The inverse of `apply`."""
        return Orientation(self.flip_zyx).apply(array.swapaxes(-1, -2) if self.transpose else array)


@dataclass(frozen=True)
class Geometry:
    """A patch: the extent of its input, of its output, and how much input precedes the output, all (z, y, x).

    ``before`` is half of the difference, rounded down where the field of view is even.
    """

    input_shape: tuple
    output_shape: tuple
    before: tuple

    @classmethod
    def centred(cls, input_shape, output_shape):
        inside, outside = triple(output_shape, "output_shape"), triple(input_shape, "input_shape")
        if min(inside) < 1 or any(o < i for o, i in zip(outside, inside)):
            raise WrongSetting(f"patch: expected an output of at least 1 voxel and no larger than the input "
                               f"(z, y, x), found output {inside} and input {outside}")
        return cls(outside, inside, tuple((o - i) // 2 for o, i in zip(outside, inside)))

    @property
    def after(self):
        return tuple(i - o - b for i, o, b in zip(self.input_shape, self.output_shape, self.before))

    def oriented(self, orientation):
        """The geometry to read, so that `orientation.apply` makes this one of it."""
        swap = (lambda t: (t[0], t[2], t[1])) if orientation.transpose else tuple
        before = tuple(a if flip else b
                       for a, b, flip in zip(swap(self.after), swap(self.before), orientation.flip_zyx))
        return Geometry(swap(self.input_shape), swap(self.output_shape), before)

    def rois(self, begin):
        """The regions (input, output) of the patch whose input begins at voxel `begin`."""
        source = Roi(begin, self.input_shape)
        return source, Roi(tuple(b + g for b, g in zip(begin, self.before)), self.output_shape)

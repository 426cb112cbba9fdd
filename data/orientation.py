"""Flips and the transpose of x and y: exact permutations of voxels, and what they do to a patch's geometry."""
from dataclasses import dataclass

import numpy as np

from data.errors import WrongSetting
from data.roi import Roi, triple
from data.volume import Volume


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

    def move(self, roi, shape):
        """Where `apply` takes the region `roi` of an array of `shape`."""
        return self._swapped(self._flipped(roi, shape))

    def back(self, roi, shape):
        """The inverse of `move`; `shape` is still that of the array before."""
        return self._flipped(self._swapped(roi), shape)

    def _flipped(self, roi, shape):
        begin = (n - e if flip else b for b, e, n, flip in zip(roi.begin, roi.end, shape, self.flip_zyx))
        return Roi(tuple(begin), roi.shape)

    def _swapped(self, roi):
        return Roi(self.swap(roi.begin), self.swap(roi.shape))

    def swap(self, values):
        """Three values (z, y, x), the last two changed over where `apply` swaps their axes."""
        z, y, x = values
        return (z, x, y) if self.transpose else (z, y, x)


def oriented(volume, orientation):
    """What `orientation.apply` makes of a volume: a lazy Volume, read like any other."""
    if orientation == Orientation():
        return volume
    resolution = orientation.swap(volume.resolution_zyx) if volume.resolution_known else None
    return Volume(_Oriented(volume, orientation), resolution, name=volume.name)


class _Oriented:
    """What Volume slices: another volume, turned when read."""

    def __init__(self, volume, orientation):
        self.volume, self.orientation = volume, orientation
        self.shape, self.dtype = orientation.swap(volume.shape), volume.dtype

    def __getitem__(self, slices):
        roi = Roi.between([s.start for s in slices], [s.stop for s in slices])
        return self.orientation.apply(self.volume.read(self.orientation.back(roi, self.volume.shape)))


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
        swap = orientation.swap
        before = tuple(a if flip else b
                       for a, b, flip in zip(swap(self.after), swap(self.before), orientation.flip_zyx))
        return Geometry(swap(self.input_shape), swap(self.output_shape), before)

    def rois(self, begin):
        """The regions (input, output) of the patch whose input begins at voxel `begin`."""
        source = Roi(begin, self.input_shape)
        return source, Roi(tuple(b + g for b, g in zip(begin, self.before)), self.output_shape)

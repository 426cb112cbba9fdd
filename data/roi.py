"""Regions and blocks, in voxels, always (z, y, x).

A block reads more than it writes, by what the field of view needs around every voxel::

    +--------------------+   read  = write.grow(low, high)
    |  low               |
    |    +----------+    |   the read region may stick out of the volume;
    |    |  write   |    |   only there does the reader mirror
    |    +----------+    |
    |               high |
    +--------------------+
"""
import itertools
import math
from dataclasses import dataclass

from data.errors import WrongSetting


def triple(value, what="value"):
    """Three Python ints (z, y, x) from any sequence of three whole numbers."""
    numbers = tuple(value)
    if len(numbers) != 3 or any(int(n) != n for n in numbers):
        raise WrongSetting(f"{what}: expected three whole numbers (z, y, x), found {value!r}")
    return tuple(int(n) for n in numbers)


@dataclass(frozen=True)
class Roi:
    """A box of voxels: `offset` is its first voxel, `shape` its extent, both (z, y, x).

    The offset may be negative; the shape may not, but may be zero along an axis (an empty region).
    """

    offset: tuple
    shape: tuple

    def __post_init__(self):
        object.__setattr__(self, "offset", triple(self.offset, "offset"))
        object.__setattr__(self, "shape", triple(self.shape, "shape"))
        if min(self.shape) < 0:
            raise WrongSetting(f"shape: expected no negative extent, found {self.shape}")

    @classmethod
    def between(cls, begin, end):
        """The region from `begin` up to but not including `end`; empty along an axis where they cross."""
        return cls(begin, tuple(max(0, e - b) for b, e in zip(begin, end)))

    @property
    def begin(self):
        """First voxel; the same as `offset`."""
        return self.offset

    @property
    def end(self):
        """One past the last voxel."""
        return tuple(o + s for o, s in zip(self.offset, self.shape))

    @property
    def slices(self):
        """Three slices for indexing an array whose first voxel is (0, 0, 0)."""
        return tuple(slice(b, e) for b, e in zip(self.begin, self.end))

    @property
    def size(self):
        """Number of voxels."""
        return math.prod(self.shape)

    def grow(self, low, high):
        """The region with `low` voxels added before and `high` voxels after each axis (negative ones shrink it)."""
        return Roi.between(tuple(b - g for b, g in zip(self.begin, triple(low))),
                           tuple(e + g for e, g in zip(self.end, triple(high))))

    def shift(self, by):
        """The region moved by `by` voxels."""
        return Roi(tuple(b + s for b, s in zip(self.begin, triple(by))), self.shape)

    def intersect(self, other):
        """The voxels in both regions; a region of size 0 when there are none."""
        return Roi.between(tuple(map(max, self.begin, other.begin)), tuple(map(min, self.end, other.end)))

    def contains(self, other):
        """Whether every voxel of `other` is in this region (an empty region is in any)."""
        return other.size == 0 or self.intersect(other) == other


@dataclass(frozen=True)
class Block:
    """One piece of work: results for `write` are computed from `read`."""

    read: Roi
    write: Roi


def blocks(roi, write_shape, low=(0, 0, 0), high=(0, 0, 0)):
    """Cut a region into blocks, in raster order (x fastest); the last ones along an axis shrink.

    Parameters
    ----------
    roi : Roi
        What is to be written; every voxel of it is written exactly once.
    write_shape : (z, y, x)
        Largest extent of one write region, at least 1 each.
    low, high : (z, y, x)
        Context that is read before and after each write region.

    Returns
    -------
    list of Block
    """
    step = triple(write_shape, "write_shape")
    if min(step) < 1:
        raise WrongSetting(f"write_shape: expected at least 1 voxel along each axis, found {step}")
    starts = itertools.product(*(range(b, e, s) for b, e, s in zip(roi.begin, roi.end, step)))
    writes = (Roi(start, tuple(min(s, e - b) for s, e, b in zip(step, roi.end, start))) for start in starts)
    return [Block(write.grow(low, high), write) for write in writes]

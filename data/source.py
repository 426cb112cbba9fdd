"""A labelled stack: grey values, labels, and what else belongs to it, brought onto one grid."""
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from data.errors import EmptyVolume, Mismatch, WrongType
from data.normalise import scaled_map
from data.roi import Roi, blocks
from data.targets import BOUNDARY, IGNORE, INTERIOR, boundary_target
from data.volume import Volume, common_roi

COUNT_BLOCK = (8, 1024, 1024)


@dataclass(frozen=True)
class Source:
    """What patches of one stack are drawn from.

    raw : Volume
        Standardised grey values (see `data.standardised`).
    labels : Volume
        Paired with `raw` by their offsets; may cover less than `raw` or more.
    kind : "membrane" or "ids"
        How labels become targets, see `data.boundary_target`.
    mask : Volume, optional
        Nonzero where labels are not to be used; covers all the labels.
    boundary_map : Volume, optional
        The boundary probabilities of an earlier stage; covers all of `roi`.
    roi : Roi, optional
        Voxels of `raw` outside of which nothing is read (not even as context or to mirror). Statistics of the
        standardisation are the caller's: crop before standardising to keep them inside too.
    """

    raw: Volume
    labels: Volume
    kind: str = "membrane"
    mask: Volume | None = None
    boundary_map: Volume | None = None
    roi: Roi | None = None

    def __post_init__(self):
        if self.raw.dtype.kind != "f":
            raise WrongType(f"{self.raw.name}: expected standardised grey values, found {self.raw.dtype}; "
                            "pass standardised(volume, Standardisation(...))")
        self.region()

    def image(self):
        """`raw` cropped to `roi`; its voxels are the coordinates of `target`, `scaled_map` and `region`."""
        return self.raw if self.roi is None else self.raw.crop(self.roi)

    def region(self):
        """The labelled part of `image`, as a region of it."""
        return common_roi(self.image(), self.labels)[0]

    def target(self):
        """A lazy uint8 Volume of the shape of `image`; `data.IGNORE` outside of the labels and the mask's voxels."""
        return self.image().over(_Target(self), self.labels.name)

    def scaled_map(self, how):
        """The boundary map cropped to `image` and scaled to [-1, 1], or None without one."""
        if self.boundary_map is None:
            return None
        image = self.image()
        return scaled_map(covering(self.boundary_map, image, image.roi, "boundary map"), how)

    def with_map(self, boundary_map):
        """The same source with the map of an earlier stage."""
        return replace(self, boundary_map=boundary_map)


def covering(volume, image, region, what):
    """The part of `volume` that lies over `region` of `image`; an error when it covers less."""
    in_image, in_volume = common_roi(image, volume)
    if not in_image.contains(region):
        raise Mismatch(f"{volume.name}: expected the {what} to cover voxels {region.begin}..{region.end} of "
                       f"{image.name}, found that it covers {in_image.begin}..{in_image.end}")
    return volume.crop(region.shift(b - a for a, b in zip(in_image.begin, in_volume.begin)))


class _Target:
    """What Volume slices: targets computed from labels when read."""

    dtype = np.dtype(np.uint8)

    def __init__(self, source):
        image = source.image()
        self.shape, self.region, self.kind = image.shape, source.region(), source.kind
        self.labels = covering(source.labels, image, self.region, "labels")
        self.mask = None if source.mask is None else covering(source.mask, image, self.region, "mask")

    def __getitem__(self, slices):
        roi = Roi.between([s.start for s in slices], [s.stop for s in slices])
        target = np.full(roi.shape, IGNORE, np.uint8)
        inside = roi.intersect(self.region)
        if inside.size:
            place = inside.shift(-b for b in roi.begin)
            target[place.slices] = self._inside(inside.shift(-b for b in self.region.begin))
        return target

    def _inside(self, wanted):
        """Targets of a region of the labels; read with one voxel more in-plane, since neighbours make boundaries."""
        read = wanted.grow((0, 1, 1), (0, 1, 1)).intersect(self.labels.roi)
        mask = None if self.mask is None else self.mask.read(read)
        return boundary_target(self.labels.read(read), self.kind, mask)[wanted.shift(-b for b in read.begin).slices]


class ClassCounts(NamedTuple):
    """Labelled voxels by class."""

    interior: int
    boundary: int


def class_counts(sources):
    """Interior and boundary voxels over all labelled voxels of all sources; ignored ones are not counted.

    Raises
    ------
    EmptyVolume
        If no source has a single labelled voxel.
    """
    totals = np.zeros(256, np.int64)
    for source in sources:
        target = source.target()
        for block in blocks(source.region(), COUNT_BLOCK):
            totals += np.bincount(target.read(block.write).ravel(), minlength=256)
    counts = ClassCounts(int(totals[INTERIOR]), int(totals[BOUNDARY]))
    if sum(counts) == 0:
        names = ", ".join(source.labels.name for source in sources) or "no source"
        raise EmptyVolume(f"{names}: expected at least one labelled voxel, found that all are ignored; "
                          "check the mask and the region of training")
    return counts

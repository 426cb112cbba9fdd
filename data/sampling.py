"""Training patches, uniform over every valid position; each a pure function of (seed, step)."""
import math
from dataclasses import dataclass

import numpy as np

from data.augment import Augmentation
from data.errors import NoValidPosition, WrongSetting
from data.normalise import SCALINGS
from data.orientation import Geometry, Orientation
from data.roi import Roi
from data.shade import shaded
from data.targets import IGNORE
from data.warp import draw_warp

MAX_TRIES = 1000
STREAMS = ("orientation", "position", "elastic", "misalign", "contrast", "gamma", "blur", "missing")
UNTURNED = Orientation()


@dataclass(frozen=True)
class Patch:
    """One training example.

    image : (C, Z, Y, X) float32; C is 1, or 2 with the scaled boundary map as the second channel
    target : (Z', Y', X') uint8; 0 interior, 1 boundary, 255 ignored; the centre of the image
    where : str; source, first voxel of the target (z, y, x in the source's image) and step, for messages
    """

    image: np.ndarray
    target: np.ndarray
    where: str


class PatchSampler:
    """Draws patches from labelled stacks.

    A position is valid when the output lies within the labels and the input within the image (with `mirror`, the
    input may stick out and is mirrored). All valid positions are equally likely, the last one along each axis
    included, so that stacks count by their valid positions. Positions without a single labelled voxel are
    passed over.

    Parameters
    ----------
    sources : list of Source
        All with a boundary map, or none.
    input_shape, output_shape : (z, y, x)
        Of the network; their difference is its field of view - 1.
    augmentation : Augmentation
    seed : int
    mirror : bool
        Also use positions whose context lies outside of the volume.
    recursion_scaling : "fixed" or "stack"
        See `data.scale_map`.
    memory_bytes : int
        Stacks are kept in memory as far as this reaches, and read from disk for each patch beyond it.
    """

    def __init__(self, sources, input_shape, output_shape, augmentation=None, seed=0, mirror=False,
                 recursion_scaling="fixed", memory_bytes=1 << 30):
        if recursion_scaling not in SCALINGS:
            raise WrongSetting(f"recursion_scaling: expected one of {', '.join(SCALINGS)}, found {recursion_scaling!r}")
        if not sources:
            raise NoValidPosition("sampler: expected at least one source, found none")
        if len({source.boundary_map is None for source in sources}) > 1:
            raise WrongSetting("sampler: expected all sources with a boundary map, or none; found both")
        self.augmentation = Augmentation.none() if augmentation is None else augmentation
        self.geometry = Geometry.centred(input_shape, output_shape)
        self.seed, self.mirror = int(seed), bool(mirror)
        self.stacks = _stacks(sources, recursion_scaling, memory_bytes)
        for transpose in (False, True) if self.augmentation.transpose_xy_p > 0 else (False,):
            self.position_counts(Orientation(transpose=transpose))

    def position_counts(self, orientation=UNTURNED):
        """Valid positions of each source for an orientation, a list of ints.

        Raises
        ------
        NoValidPosition
            If a source has none.
        """
        geometry = self.geometry.oriented(orientation)
        counts = [stack.positions(geometry, self.mirror).size for stack in self.stacks]
        for stack, count in zip(self.stacks, counts):
            if count == 0:
                raise NoValidPosition(stack.why_no_position(geometry, self.mirror, orientation.transpose))
        return counts

    def draw(self, step):
        """The patch of a training step: the same for the same seed and step, whatever was drawn before.

        Parameters
        ----------
        step : int, at least 0

        Returns
        -------
        Patch
        """
        rngs = {name: np.random.default_rng([self.seed, step, i]) for i, name in enumerate(STREAMS)}
        orientation = self.augmentation.orientation(rngs["orientation"])
        geometry = self.geometry.oriented(orientation)
        warp = draw_warp(self.augmentation, geometry.input_shape, rngs["elastic"], rngs["misalign"])
        stack, begin, target = self._place(geometry, warp, rngs["position"])
        image = shaded(stack.read_image(geometry, begin, warp), self.augmentation, rngs)
        output = geometry.rois(begin)[1]
        where = f"{stack.image.name}, target at voxel {output.begin} with shape {output.shape}, step {step}"
        return Patch(orientation.apply(image), orientation.apply(target), where)

    def _place(self, geometry, warp, rng):
        """A stack, where the input begins in it, and the target there: uniform over positions with labels."""
        ranges = [stack.positions(geometry, self.mirror) for stack in self.stacks]
        ends = np.cumsum([r.size for r in ranges])
        for _ in range(MAX_TRIES):
            index = int(rng.integers(ends[-1]))
            which = int(np.searchsorted(ends, index, side="right"))
            within = np.unravel_index(index - (int(ends[which - 1]) if which else 0), ranges[which].shape)
            begin = tuple(int(w) + b for w, b in zip(within, ranges[which].begin))
            target = self.stacks[which].read_target(geometry, begin, warp)
            if (target != IGNORE).any():
                return self.stacks[which], begin, target
        names = ", ".join(stack.target.name for stack in self.stacks)
        raise NoValidPosition(f"{names}: no labelled voxel in {MAX_TRIES} random patches of {geometry.output_shape}; "
                              "check the mask, or crop the volume to where labels are")


class _Stack:
    """A source made ready: image channels, target, and the region of labels, all in the voxels of the image."""

    def __init__(self, source, recursion_scaling):
        scaled = source.scaled_map(recursion_scaling)
        self.image, self.region, self.target = source.image(), source.region(), source.target()
        self.channels = [self.image] if scaled is None else [self.image, scaled]

    @property
    def nbytes(self):
        return math.prod(self.image.shape) * (4 * len(self.channels) + 1)

    def kept_in_memory(self):
        self.channels = [in_memory(channel) for channel in self.channels]
        self.target = in_memory(self.target)
        return self

    def read_image(self, geometry, begin, warp):
        """Image (C, Z, Y, X) of the patch whose input begins at `begin`, warped unless `warp` is None."""
        source = geometry.rois(begin)[0]
        if warp is None:
            return np.stack([channel.read_mirrored(source) for channel in self.channels])
        wide = source.grow((0, warp.margin, warp.margin), (0, warp.margin, warp.margin))
        return np.stack([warp.apply(channel.read_mirrored(wide), (0, 0, 0), source.shape, order=1)
                         for channel in self.channels])

    def read_target(self, geometry, begin, warp):
        """Target of the patch whose input begins at `begin`, warped unless `warp` is None."""
        output = geometry.rois(begin)[1]
        if warp is None:
            return self.target.read(output)
        wide = output.grow((0, warp.margin, warp.margin), (0, warp.margin, warp.margin))
        return warp.apply(self._target_around(wide), geometry.before, output.shape, order=0)

    def _target_around(self, roi):
        """Targets of a region that may stick out of the image, where they are ignored."""
        values = np.full(roi.shape, IGNORE, np.uint8)
        inside = roi.intersect(self.image.roi)
        values[inside.shift(-b for b in roi.begin).slices] = self.target.read(inside)
        return values

    def positions(self, geometry, mirror):
        """Where the input may begin, as a region: its `shape` counts the positions along each axis."""
        first = [r - b for r, b in zip(self.region.begin, geometry.before)]
        last = [r - b - o for r, b, o in zip(self.region.end, geometry.before, geometry.output_shape)]
        if not mirror:
            first = [max(0, f) for f in first]
            last = [min(n - i, b) for n, i, b in zip(self.image.shape, geometry.input_shape, last)]
        return Roi.between(first, [end + 1 for end in last])

    def why_no_position(self, geometry, mirror, transposed):
        return (f"{self.image.name}: no patch fits: image {self.image.shape}, labelled region {self.region.begin}.."
                f"{self.region.end}, patch input {geometry.input_shape} and output {geometry.output_shape} (z, y, x"
                f"{', transposed by the augmentation' if transposed else ''}); use a smaller output"
                f"{'' if mirror else ', or mirror at the faces (mirror=true)'}"
                f"{', or transpose_xy_p=0' if transposed else ''}")


def _stacks(sources, recursion_scaling, memory_bytes):
    stacks = []
    for source in sources:
        stack = _Stack(source, recursion_scaling)
        if stack.nbytes <= memory_bytes:
            memory_bytes -= stack.nbytes
            stack.kept_in_memory()
        stacks.append(stack)
    return stacks


class _InMemory:
    """What Volume slices: another volume, read whole when first needed; each process reads its own."""

    def __init__(self, volume):
        self.volume, self.shape, self.dtype, self.values = volume, volume.shape, volume.dtype, None

    def __getitem__(self, slices):
        if self.values is None:
            self.values = self.volume.read()
        return self.values[slices]

    def __getstate__(self):
        return self.__dict__ | {"values": None}


def in_memory(volume):
    """The same volume, kept in memory from its first reading on."""
    return volume.over(_InMemory(volume))

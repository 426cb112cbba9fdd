"""Test-time averaging: the mean of the maps that a chain of networks makes of a volume, seen from several sides.

A section has no left or right, and a stack of them no top: the volume may be flipped along any axis, and have y and x
swapped; z takes no other axis's place, since sections are thicker than voxels are wide. The whole chain runs over the
turned volume, its map is turned back, and the probabilities are averaged::

    mean over g of  g^-1( chain( g(volume) ) )

Ciresan et al., "Deep neural networks segment neuronal membranes in electron microscopy images", NIPS 2012, averaged the
maps of rotated and flipped test stacks in this way.
"""
import itertools
from collections import Counter
from dataclasses import dataclass

from data.orientation import Orientation, oriented
from data.volume import Volume
from znn.pipeline.errors import one_of
from znn.pipeline.planning import plan

AVERAGES = (1, 8, 16)     # the volume as it is; the symmetries of a section's square; and those with z flipped
ORIENTATIONS = tuple(Orientation((z, y, x), swap) for z, swap, y, x in itertools.product((False, True), repeat=4))


@dataclass(frozen=True)
class Pass:
    """The chain over one orientation of the volume.

    Attributes
    ----------
    orientation : data.orientation.Orientation
    image : Volume
        Turned.
    groups : list of groups.Group
        Their regions in voxels of the turned image.
    """

    orientation: Orientation
    image: Volume
    groups: list


def passes(networks, image, region=None, averaging=1, **options):
    """The chain over as many orientations as are averaged, the first of which is the image as it is.

    Parameters
    ----------
    networks, image, region, options
        See `planning.plan`.
    averaging : int
        One of `AVERAGES`.

    Returns
    -------
    list of Pass

    Raises
    ------
    WrongSetting, and those of `planning.plan`
    """
    one_of("averaging", averaging, AVERAGES)
    region = image.roi if region is None else region
    turned = [(each, oriented(image, each)) for each in ORIENTATIONS[:averaging]]
    return [Pass(each, view, plan(networks, view, each.move(region, image.shape), **options)) for each, view in turned]


def written(work):
    """How many voxels each stage writes in all passes; dict by name."""
    total = Counter()
    for each in work:
        for group in each.groups:
            total.update(group.voxels)
    return dict(total)


class Share:
    """The map of a pass on its way into the mean: added to the sum of the passes before, and divided after the last.

    The sum before is kept until the pass is done, so a block may be put again after an interruption.

    Parameters
    ----------
    kept : map of a store, over the region of the image
        Where the new sum goes, see `inference.MemoryMap`.
    before : sliceable or None
        The sum of the passes before, None for the first.
    orientation : Orientation
    divisor : int
        1, and in the last pass the number of passes.
    """

    def __init__(self, kept, before, orientation, divisor):
        self._kept, self._before, self._orientation, self._divisor = kept, before, orientation, divisor
        self.values, self.cut, self.done = kept.values, kept.cut, kept.done

    def put(self, index, roi, values):
        """Take a block's `values` at `roi` of the turned map."""
        place, values = self._orientation.back(roi, self.values.shape), self._orientation.undo(values)
        if self._before is not None:
            values += self._before[place.slices]
        self._kept.put(index, place, values if self._divisor == 1 else values / self._divisor)

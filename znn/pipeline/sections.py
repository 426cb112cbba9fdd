r"""A map on its way to the next stage, of which only the sections are held that are still to be read.

Each stage writes its region in layers of blocks, along z. A layer is computed when one of the next stage is about to
read it, so that all stages sweep through the sections together::

    z  ----------------------------------->
    stage 1   |  1  |  2  |  3  |  5  |            the numbers: in which order layers are computed
    stage 2             |    4    |    6    |      4 reads, with its context, of 1, 2 and 3; 6 no longer reads of 1
"""
import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from data.normalise import scaled_map
from data.roi import Block
from data.volume import Volume
from znn.pipeline.groups import Stage


class SectionMap:
    """The sections of a map that are held, to be read like an array."""

    dtype = np.dtype(np.float32)

    def __init__(self, shape):
        self.shape, self._held = tuple(shape), {}

    def put(self, roi, values, keep=0):
        """Take a block's `values` at `roi` of the map, and let go of the sections before `keep`."""
        for z in [z for z in self._held if z < keep]:
            del self._held[z]
        for z, section in zip(range(roi.begin[0], roi.end[0]), values):
            if z not in self._held:
                self._held[z] = np.empty(self.shape[1:], np.float32)
            self._held[z][roi.slices[1:]] = section

    def __getitem__(self, slices):
        return np.stack([self._held[z][slices[1:]] for z in range(slices[0].start, slices[0].stop)])


@dataclass(frozen=True)
class Placed:
    """A volume that covers a part of the image, which begins at voxel `begin` of it."""

    volume: Volume
    begin: tuple

    def read(self, roi):
        """The voxels of a region of the image, mirrored where it sticks out."""
        return self.volume.read_mirrored(roi.shift(-b for b in self.begin))


@dataclass(frozen=True, eq=False)
class Task:
    """A block to be computed.

    Attributes
    ----------
    stage : Stage
    block : data.roi.Block
    held : Placed or None
        The map of the stage before, where it is held by sections.
    target : callable or None
        ``target(values)`` puts the result where the next stage reads it; None for the map that is kept.
    """

    stage: Stage
    block: Block
    held: Placed | None
    target: Callable | None = None


def tasks(stages, image, done, recursion_scaling="fixed"):
    """The blocks of a column in the order in which they are computed.

    Parameters
    ----------
    stages : sequence of Stage
        With their regions for the column, see `groups.Group.columns`.
    image : Volume
    done : callable
        ``done(block)`` tells that a block of the last stage need not be computed, nor what is read only by such blocks.
    recursion_scaling : str
        See `data.scale_map`.

    Returns
    -------
    list of Task
    """
    maps = [SectionMap(stage.region.shape) for stage in stages[:-1]]
    held = [None, *(Placed(scaled_map(image.crop(stage.region).over(each, f"map of {stage.name}"), recursion_scaling),
                           stage.region.begin) for stage, each in zip(stages, maps))]
    layers = [_layers(stage) for stage in stages]
    made = [0] * len(maps)

    def put(i, block, begin):
        """What puts a block into the map of stage i when nothing is read any more before section `begin`."""
        first = stages[i].region.begin
        return functools.partial(maps[i].put, block.write.shift(-b for b in first), keep=begin - first[0])

    def ready(i, layer):
        """What the map before must be given for a layer of stage i."""
        if i:
            reads, last = (stages[i].reads(each[0].write) for each in (layer, layers[i][-1]))
            yield from make(i - 1, min(reads.begin[0], last.begin[0]), reads.end[0])

    def make(i, begin, end):
        """Stage i from section `begin` on, before which nothing is read any more, to `end`; once."""
        while made[i] < len(layers[i]) and layers[i][made[i]][0].write.begin[0] < end:
            layer = layers[i][made[i]]
            made[i] += 1
            if layer[0].write.end[0] > begin:
                yield from ready(i, layer)
                yield from (Task(stages[i], block, held[i], put(i, block, begin)) for block in layer)

    def column():
        for layer in layers[-1]:
            missing = [block for block in layer if not done(block)]
            if missing:
                yield from ready(len(maps), layer)
            yield from (Task(stages[-1], block, held[-1]) for block in missing)

    return list(column())


def _layers(stage):
    """The blocks of a stage, layer by layer."""
    return [list(layer) for _, layer in itertools.groupby(stage.blocks(), key=lambda block: block.write.begin[0])]

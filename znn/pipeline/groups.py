r"""Stages that go through a volume together, and how their work is cut.

The last stage's map of a group is kept; of the maps before only the sections are held that are still to be read. Where
whole sections are too large for that, the region is cut along y and x into columns, done one after the other::

    y, x  |<-- column -->|<-- column -->|          the map that is kept
        <------------------->                      what an earlier stage writes for the first: with the context
                       <------------------->       and for the second; what overlaps is computed for both
"""
import math
from dataclasses import dataclass, replace

import torch

from data.roi import Roi, blocks
from data.volume import reached
from znn.pipeline.memory import Footprint


@dataclass(frozen=True)
class Stage:
    """One network's share of the work.

    Attributes
    ----------
    name : str
    network : torch.nn.Module
    field_of_view : (z, y, x)
    need : memory.Footprint
        Bytes for an input of (z, y, x) voxels.
    region : Roi
        What it writes, in voxels of the image.
    volume : (z, y, x)
        Extent of the image.
    block_shape : (z, y, x)
        Largest extent of a block that it writes.
    """

    name: str
    network: torch.nn.Module
    field_of_view: tuple
    need: Footprint
    region: Roi
    volume: tuple
    block_shape: tuple = None

    @property
    def context(self):
        """Voxels (z, y, x) read before and after a written region."""
        low = tuple((f - 1) // 2 for f in self.field_of_view)
        return low, tuple(f - 1 - b for f, b in zip(self.field_of_view, low))

    def reads(self, region):
        """The voxels of the image, and of the map before, from which a region is computed."""
        return reached(region.grow(*self.context), self.volume)

    def bytes_of(self, shape):
        """Most memory that a block of this shape takes, its context included."""
        return float(self.need(*(s + f - 1 for s, f in zip(shape, self.field_of_view))))

    def blocks(self):
        """The blocks in raster order."""
        return blocks(self.region, self.block_shape, *self.context)


@dataclass(frozen=True)
class Group:
    """Stages that are done together, each but the first reading the map of the one before.

    Attributes
    ----------
    stages : tuple of Stage
    column : (y, x)
        Largest extent of a column of the last stage, of whole blocks.
    budget : float
        Bytes that may be taken at a time.
    """

    stages: tuple
    column: tuple
    budget: float

    @property
    def last(self):
        """The stage whose map is kept."""
        return self.stages[-1]

    @property
    def cut(self):
        """How the work is cut, as values for JSON."""
        return {"blocks": {stage.name: list(stage.block_shape) for stage in self.stages}, "column": list(self.column)}

    def recut(self, cut):
        """The same work, cut as another's `cut` says."""
        stages = tuple(replace(stage, block_shape=tuple(cut["blocks"][stage.name])) for stage in self.stages)
        return Group(stages, tuple(cut["column"]), self.budget)

    def columns(self):
        """For each column the stages, with the regions that they write for it; list of tuples."""
        return [self._within(part.write)
                for part in blocks(self.last.region, (self.last.region.shape[0], *self.column))]

    def _within(self, region):
        found = []
        for stage in reversed(self.stages):
            found.append(replace(stage, region=region))
            region = stage.reads(region)
        return tuple(found[::-1])

    @property
    def voxels(self):
        """How many voxels each stage writes, some more than once where columns overlap; dict by name."""
        columns = self.columns()
        return {stage.name: sum(column[i].region.size for column in columns) for i, stage in enumerate(self.stages)}

    @property
    def section_bytes(self):
        """At most so much is held of the maps before the last."""
        return 4 * sum(map(math.prod, self._held()))

    @property
    def nbytes(self):
        """At most so much is taken at a time, by sections and a block."""
        return self.section_bytes + max(stage.bytes_of(stage.block_shape) for stage in self.stages)

    @property
    def network_bytes(self):
        """At most so much of it by the networks themselves."""
        return max(float(s.need.own(*(n + f - 1 for n, f in zip(s.block_shape, s.field_of_view))))
                   for s in self.stages)

    def _held(self):
        """What is held of each map but the last, (z, y, x) voxels: what a layer of blocks of the next stage reads, and
        what the blocks that are written for it exceed this by."""
        extents, found = self.extents(), []
        for stage, after, extent in zip(self.stages, self.stages[1:], extents):
            sections = after.block_shape[0] + after.field_of_view[0] - 1 + stage.block_shape[0] - 1
            found.append((min(sections, extent[0]), *extent[1:]))
        return found

    def extents(self):
        """The largest extent that each stage writes for a column; list of (z, y, x)."""
        extent, found = (self.last.region.shape[0], *self.column), []
        for stage in reversed(self.stages):
            found.append(tuple(map(min, extent, stage.region.shape)))
            extent = tuple(n + f - 1 for n, f in zip(extent, stage.field_of_view))
        return found[::-1]

r"""The work that is planned: stages, their regions and blocks, and how a map gets to the next stage.

::

    in passes     each map is finished and kept before the next stage begins
    in columns    the region is cut along y and x into columns; in each, the stages sweep through the sections together,
                  and of a map only the sections that are still needed are held (`znn.pipeline.rolling`)
"""
from dataclasses import dataclass, replace

from data.roi import Roi, blocks
from znn.pipeline.averaging import context
from znn.pipeline.demand import Demand
from znn.pipeline.rolling import capacities, layers, spans


@dataclass(frozen=True)
class Stage:
    """One network's share of the work.

    Attributes
    ----------
    name : str
    network : torch.nn.Module or znn.graph.compiled.Compiled
    field_of_view : (z, y, x)
    orientations : tuple of data.orientation.Orientation
        In which the network sees a block; the maps are averaged.
    need : demand.Demand
        Bytes for an input of (z, y, x) voxels, those of reading and writing included.
    region : Roi
        What it writes, in voxels of the image.
    block_shape : (z, y, x)
        Largest extent of a block that it writes.
    """

    name: str
    network: object
    field_of_view: tuple
    orientations: tuple
    need: Demand
    region: Roi = None
    block_shape: tuple = None

    @property
    def context(self):
        """Voxels (z, y, x) read before and after a written region."""
        return context(self.field_of_view, self.orientations)

    @property
    def reach(self):
        """Voxels (z, y, x) read for one that is written."""
        return tuple(low + high + 1 for low, high in zip(*self.context))

    def bytes_of(self, shape):
        """Most memory that a block of this shape takes, its context included."""
        return float(self.need(*(s + r - 1 for s, r in zip(shape, self.reach))))

    @property
    def network_bytes(self):
        """What the network itself holds of it, for a block as planned."""
        return self.need.excess * float(self.need.own(*(s + r - 1 for s, r in zip(self.block_shape, self.reach))))

    def blocks(self, shape=None):
        """The blocks in raster order; `shape` in place of the planned one."""
        return blocks(self.region, shape or self.block_shape, *self.context)

    def seconds(self, rate):
        """Expected time of all its blocks, at `rate` seconds for a product."""
        counts = [-(-n // s) for n, s in zip(self.region.shape, self.block_shape)]
        return rate * len(self.orientations) * self.need.work(self.region.shape, counts, self.reach)


@dataclass(frozen=True)
class Plan:
    """What is computed, in which blocks and in which order.

    Attributes
    ----------
    stages : tuple of Stage
    budget : float
        Bytes that may be taken at a time.
    column : (y, x) or None
        Largest extent of a column, of what the last stage writes of it; None: in passes.
    """

    stages: tuple
    budget: float
    column: tuple = None

    @property
    def kept(self):
        """The stages whose maps are finished and kept: all, or in columns the last."""
        return self.stages if self.column is None else self.stages[-1:]

    @property
    def cut(self):
        """How the work is cut, as plain values."""
        return {"blocks": {s.name: list(s.block_shape) for s in self.stages},
                "column": None if self.column is None else list(self.column)}

    def recut(self, cut):
        """The same work cut as another plan's `cut` says."""
        stages = tuple(replace(s, block_shape=tuple(cut["blocks"][s.name])) for s in self.stages)
        return Plan(stages, self.budget, None if cut["column"] is None else tuple(cut["column"]))

    def columns(self, image):
        """For each column the stages, with what they write for it; one column where the work is done in passes."""
        if self.column is None:
            return [self.stages]
        whole = self.stages[-1].region
        return [regions(self.stages, part.write, image) for part in blocks(whole, (whole.shape[0], *self.column))]

    def voxels(self, image):
        """How many voxels each stage writes, more than once where columns overlap; dict by name."""
        columns = self.columns(image)
        return {stage.name: sum(c[i].region.size for c in columns) for i, stage in enumerate(self.stages)}

    def seconds(self, image, rates):
        """Expected time of each stage; `rates` are seconds for a product by name, and so is the result."""
        columns = self.columns(image)
        return {stage.name: sum(c[i].seconds(rates[stage.name]) for c in columns)
                for i, stage in enumerate(self.stages)}

    def nbytes(self, image):
        """Most memory that is taken at a time: by a block, and by the sections that are held."""
        held = 0 if self.column is None else sum(section_bytes(self.columns(image), image))
        return held + max(stage.bytes_of(stage.block_shape) for stage in self.stages)


def regions(stages, region, image):
    """The stages with what they write so that the last one can write `region`; tuple."""
    found = []
    for stage in reversed(stages):
        found.append(replace(stage, region=region))
        region = region.grow(*stage.context).intersect(image.roi)
    return tuple(found[::-1])


def section_bytes(columns, image):
    """Bytes of the sections that are held of each map but the last, in the widest of the columns; list."""
    found = held_sections(columns[0], image)
    areas = [max(c[i].region.shape[1] * c[i].region.shape[2] for c in columns) for i in range(len(found))]
    return [4 * sections * area for sections, area in zip(found, areas)]


def held_sections(stages, image):
    """How many sections are held of each map but the last; list."""
    cuts = [layers(stage) for stage in stages]
    return capacities(cuts, [spans(stage, cut, image.shape[0]) for stage, cut in zip(stages, cuts)])

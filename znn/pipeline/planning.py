"""Who computes what: the stages of a chain of networks, their regions and their blocks.

All stages are planned backwards: the last one's region is what was asked for, and an earlier one's is that with the
context of its successor, as far as the volume goes.
"""
from dataclasses import dataclass

import torch

from data.roi import Roi, blocks
from znn import nn
from znn.pipeline.errors import CheckpointError, UndefinedVolume
from znn.pipeline.memory import GB, WORKSPACE, Footprint, block_shape, footprint


@dataclass(frozen=True)
class Stage:
    """One network's share of the work.

    Attributes
    ----------
    name : str
    network : torch.nn.Module
    field_of_view : (z, y, x)
    region : Roi
        What it writes, in voxels of the image.
    block_shape : (z, y, x)
        Largest extent of a block that it writes.
    need : memory.Footprint
        Bytes for an input of (z, y, x) voxels.
    budget : float
        Bytes that a block may take.
    """

    name: str
    network: torch.nn.Module
    field_of_view: tuple
    region: Roi
    block_shape: tuple
    need: Footprint
    budget: float

    @property
    def context(self):
        """Voxels (z, y, x) read before and after a written region."""
        low = tuple((f - 1) // 2 for f in self.field_of_view)
        return low, tuple(f - 1 - b for f, b in zip(self.field_of_view, low))

    def bytes_of(self, shape):
        """Most memory that a block of this shape takes, its context included."""
        return float(self.need(*(s + f - 1 for s, f in zip(shape, self.field_of_view))))

    def blocks(self, shape=None):
        """The blocks in raster order; `shape` in place of the planned one."""
        return blocks(self.region, shape or self.block_shape, *self.context)


def plan(networks, image, region=None, memory_budget=GB):
    """The stages with their regions and block shapes.

    Parameters
    ----------
    networks : sequence of (str, Module), or of Module
        In the order in which they are chained; the first reads the image, each later one the image and a map.
    image : Volume
    region : Roi, optional
        What the last map has to cover; default all of the image.
    memory_budget : float
        Bytes that a block may take in flight, beside what the process holds already.

    Returns
    -------
    list of Stage

    Raises
    ------
    CheckpointError
        If a network does not take the channels that its place in the chain gives it.
    UndefinedVolume
        If the region is not in the image, or an axis of one voxel cannot be mirrored into a field of view.
    BudgetTooSmall
    """
    region = image.roi if region is None else region
    if region.size == 0 or not image.roi.contains(region):
        raise UndefinedVolume(f"{image.name}: expected a region of at least one voxel inside 0..{image.shape} "
                              f"(z, y, x), found {region.begin}..{region.end}")
    engine, stages = nn.current_engine(), []
    budget = memory_budget / WORKSPACE[engine]
    for i, (name, network) in reversed(list(enumerate(named(networks)))):
        channels = min(i, 1) + 1
        fov = field_of_view(name, network, channels)
        _check_mirroring(image, name, fov)
        need = footprint(network, channels, fov, fused=engine == "znn")
        shape = block_shape(region.shape, fov, need, budget, name)
        stages.append(Stage(name, network, fov, region, shape, need, budget))
        region = region.grow(*stages[-1].context).intersect(image.roi)
    return stages[::-1]


def named(networks):
    """The networks as (name, network) pairs; those that come without a name are stage1, stage2, ..."""
    pairs = [n if isinstance(n, tuple) else (f"stage{i}", n) for i, n in enumerate(networks, 1)]
    if not pairs:
        raise CheckpointError("inference: expected at least one network, found none")
    return pairs


def field_of_view(name, network, channels):
    """A network's field of view (z, y, x), once it is known to take as many channels as its stage gives it."""
    takes = getattr(network, "in_channels", channels)
    if takes != channels:
        reads = "the image alone" if channels == 1 else "the image and the map of the stage before it"
        raise CheckpointError(f"stage {name!r}: expected a network of {channels} input channel(s), because it reads "
                              f"{reads}; found one of {takes}. A recursive network comes after a plain one")
    return tuple(getattr(network, "field_of_view", None) or nn.field_of_view(network, channels))


def _check_mirroring(image, name, fov):
    for axis, n, f in zip("zyx", image.shape, fov):
        if n == 1 and f > 1:
            raise UndefinedVolume(
                f"{image.name}: stage {name!r} sees {f} voxels along {axis}, the volume has 1, and a single voxel "
                f"cannot be mirrored; give at least 2 along {axis}, or use a network that sees 1 (a 2D one, along z)")

"""From a chain of networks, a volume and a budget to the work: regions, blocks, columns.

All stages are planned backwards: the last one's region is what was asked for, and an earlier one's is that with the
context of its successor, as far as the volume goes.
"""
from dataclasses import replace

import torch

from znn import nn
from znn.pipeline.averaging import orientations
from znn.pipeline.columns import in_columns
from znn.pipeline.cutting import block_shape
from znn.pipeline.demand import WHOLE, demand
from znn.pipeline.errors import CheckpointError, UndefinedVolume
from znn.pipeline.memory import GB
from znn.pipeline.work import Plan, Stage, regions

WORKSPACE = {"znn": 1.1, "torch": 2.0}     # what is held over what is counted, measured: torch rearranges its operands
READING_BYTES = 12        # a voxel of input while the next block is read: grey value, float32, a mirrored copy
WRITING_BYTES = 12        # a voxel of output: the map, what it is made of, the block before on its way to the disk
AVERAGING_BYTES = 8       # and where maps are averaged: their sum, and one turned back
ROUNDS = 5                # at making the reckoned memory of compiled networks that of their plans
CLOSE = 0.95              # where a block needs so much of what is reckoned, it is near enough


def plan(networks, image, region=None, memory_budget=GB, tta="off", columns=False):
    """The stages with their regions and block shapes.

    Parameters
    ----------
    networks : sequence of (str, network), or of networks
        In the order in which they are chained; the first reads the image, each later one the image and a map. A
        network is a torch.nn.Module, or what `znn.compile` made of one.
    image : Volume
    region : Roi, optional
        What the last map has to cover; default all of the image.
    memory_budget : float
        Bytes that may be taken in flight, beside what the process holds already.
    tta : str
        Over which orientations maps are averaged, a key of `averaging.AVERAGES`.
    columns : bool
        Whether maps go to the next stage in columns; else in passes.

    Returns
    -------
    Plan

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
    stages = [_draft(name, network, min(i, 1) + 1, tta) for i, (name, network) in enumerate(named(networks))]
    for stage in stages:
        _check_mirroring(image, stage)
    stages = regions(stages, region, image)
    for _ in range(ROUNDS):
        found = (in_columns if columns and len(stages) > 1 else _in_passes)(stages, memory_budget)
        excess = [_excess(stage) for stage in found.stages]
        if all(CLOSE * s.need.excess <= e <= s.need.excess for s, e in zip(stages, excess)):
            break
        stages = [replace(s, need=replace(s.need, excess=e)) for s, e in zip(stages, excess)]
    return found


def _in_passes(stages, budget):
    return Plan(tuple(replace(s, block_shape=block_shape(s.region.shape, s.reach, s.need, budget, s.name))
                      for s in stages), budget)


def _draft(name, network, channels, tta):
    """A stage of which neither region nor blocks are known."""
    engine, fov, turns = nn.current_engine(), field_of_view(name, network, channels), orientations(tta)
    need = demand(network, channels, fov, fused=engine == "znn")
    if isinstance(network, torch.nn.Module):
        need = replace(need, excess=WORKSPACE[engine])
    stage, several = Stage(name, network, fov, turns, need), len(turns) > 1
    entered = READING_BYTES + 4 * channels * (2 if several else 1)      # the next block, and this one turned
    left = WRITING_BYTES + (AVERAGING_BYTES if several else 0)
    return replace(stage, need=need.beside((entered, WHOLE), (left, tuple(r - 1 for r in stage.reach))))


def _excess(stage):
    """Memory that the network takes in a block for each byte that its demand counts."""
    if isinstance(stage.network, torch.nn.Module):
        return stage.need.excess
    z, y, x = (s + f - 1 for s, f in zip(stage.block_shape, stage.field_of_view))
    seen = {(z, x, y) if each.transpose else (z, y, x) for each in stage.orientations}
    taken = 4 * stage.network.in_channels * z * y * x + max(map(stage.network.peak_bytes, seen))
    return taken / float(stage.need.own(z, y, x))


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


def _check_mirroring(image, stage):
    for axis, n, f in zip("zyx", image.shape, stage.field_of_view):
        if n == 1 and f > 1:
            raise UndefinedVolume(
                f"{image.name}: stage {stage.name!r} sees {f} voxels along {axis}, the volume has 1, and a single voxel "
                f"cannot be mirrored; give at least 2 along {axis}, or use a network that sees 1 (a 2D one, along z)")

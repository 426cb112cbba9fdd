"""Who computes what: a chain of networks as groups of stages, their regions and their blocks.

All stages are planned backwards: the last one's region is what was asked for, and an earlier one's is that with the
context of its successor, as far as the volume goes.
"""
from dataclasses import replace

from data.normalise import SCALINGS
from znn import nn
from znn.pipeline.columns import cut
from znn.pipeline.errors import CheckpointError, UndefinedVolume, one_of
from znn.pipeline.groups import Stage
from znn.pipeline.memory import GB, WORKSPACE, footprint

# A voxel of input while the next block is read (grey value, two float64 steps, float32, mirrored copies; 4 bytes of it
# stay), and of the map before on its way to the disk.
BESIDE_BYTES = 40


def plan(networks, image, region=None, memory_budget=GB, recursion_scaling="fixed", known=()):
    """The chain in groups: a map goes to the next stage section by section unless all of it has to be there first.

    Parameters
    ----------
    networks : sequence of (str, Module), or of Module
        In the order in which they are chained; the first reads the image, each later one the image and a map.
    image : Volume
    region : Roi, optional
        What the last map has to cover; default all of the image.
    memory_budget : float
        Bytes that may be taken in flight, beside what the process holds already: by a block, the sections of earlier
        maps, reading and writing.
    recursion_scaling : "fixed" or "stack"
        How a map is scaled for the next stage, see `data.scale_map`; "stack" needs the extremes of all of it.
    known : collection of str
        Stages whose maps are there already, all of them.

    Returns
    -------
    list of Group

    Raises
    ------
    CheckpointError
        If a network does not take the channels that its place in the chain gives it.
    UndefinedVolume
        If the region is not in the image, or an axis of one voxel cannot be mirrored into a field of view.
    WrongSetting, BudgetTooSmall
    """
    one_of("recursion_scaling", recursion_scaling, SCALINGS)
    region = image.roi if region is None else region
    if region.size == 0 or not image.roi.contains(region):
        raise UndefinedVolume(f"{image.name}: expected a region of at least one voxel inside 0..{image.shape} "
                              f"(z, y, x), found {region.begin}..{region.end}")
    groups = [[]]
    for i, (name, network) in reversed(list(enumerate(named(networks)))):
        if groups[0] and (recursion_scaling == "stack" or name in known):
            groups.insert(0, [])
        groups[0].insert(0, _stage(name, network, min(i, 1) + 1, image, region))
        region = groups[0][0].reads(region)
    return [cut(stages, memory_budget) for stages in groups]


def _stage(name, network, channels, image, region):
    engine, fov = nn.current_engine(), field_of_view(name, network, channels)
    _check_mirroring(image, name, fov)
    need = footprint(network, channels, fov, fused=engine == "znn")
    return Stage(name, network, fov, replace(need, excess=WORKSPACE[engine], beside=BESIDE_BYTES), region, image.shape)


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

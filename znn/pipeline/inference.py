r"""Dense boundary maps of volumes of any size, block by block, through one network or a recursive chain of them.

A block reads its field of view's context from its real neighbours; only what lies outside the volume is mirrored, so
the result does not depend on how the volume was cut::

    image  ------------------------------+--> stage 2 --> boundary map
       \                                 |
        +--> stage 1 --> map, 2 p - 1 ---+        each map is finished over its region before the next stage begins
"""
import contextlib
import functools

import numpy as np
import torch

from data.normalise import SCALINGS, scaled_map
from data.volume import Volume
from znn import nn
from znn.pipeline.averaging import Share, passes
from znn.pipeline.errors import BudgetTooSmall, CheckpointError, NonFiniteMap, one_of
from znn.pipeline.memory import GB
from znn.pipeline.planning import field_of_view, named


def infer_volume(networks, image, store=None, region=None, memory_budget=GB, recursion_scaling="fixed", progress=None,
                 prepare=None, averaging=1):
    """The boundary map of a volume.

    Parameters
    ----------
    networks : sequence of (str, Module), or of Module
        See `planning.plan`. They are used in eval mode and given back in the mode they came in.
    image : Volume
        What the networks were trained on: already standardised.
    store : object, optional
        Where maps are kept while and after they are computed (`partial.PartialFile`); default in memory.
    region : Roi, optional
        Only this part, with its context from the rest of the image; default all of it.
    memory_budget : float
        Bytes for a block in flight; maps in memory come on top of it.
    recursion_scaling : "fixed" or "stack"
        How a map is scaled for the next stage, see `data.scale_map`.
    progress : callable, optional
        ``progress(stage_name, voxels, kept)`` after every block; `kept` tells that the voxels were finished by an
        earlier run.
    prepare : callable, optional
        ``prepare(network)`` is called in a network's place, as that of `znn.compile`; default the network itself.
    averaging : int
        Over how many orientations maps are averaged, see `znn.pipeline.averaging`.

    Returns
    -------
    Volume
        Probability of boundary, float32 in [0, 1], with the shape of `region`, the image's resolution, and the
        offset of the region.

    Raises
    ------
    CheckpointError, UndefinedVolume, BudgetTooSmall, NonFiniteMap, WrongSetting
    """
    one_of("recursion_scaling", recursion_scaling, SCALINGS)
    work = passes(networks, image, region, memory_budget, averaging)
    return run(work, image, store, recursion_scaling, progress, prepare)


def infer_array(networks, array, **options):
    """`infer_volume` from a (Z, Y, X) float array to a float32 array of the same shape; the same options."""
    return infer_volume(networks, Volume.from_array(array), **options).read()


def run(work, image, store=None, recursion_scaling="fixed", progress=None, prepare=None):
    """Do what `averaging.passes` has planned; parameters and result as in `infer_volume`."""
    store = MemoryStore() if store is None else store
    prepare = functools.cache(prepare or _itself)
    region, total = work[0].stages[-1].region, None
    for number, each in enumerate(work):
        sources = [(each.image, each.image.roi.begin)]
        for stage in each.stages[:-1]:
            kept = store.stage(stage, number)
            _run_stage(stage, sources, kept, progress or _silent, prepare)
            result = each.image.crop(stage.region).over(kept.values, f"map of {stage.name}")
            sources = [sources[0], (scaled_map(result, recursion_scaling), stage.region.begin)]
        last = each.stages[-1]
        divisor = len(work) if each is work[-1] else 1
        share = Share(store.stage(last, number, region.shape), total, each.orientation, divisor)
        _run_stage(last, sources, share, progress or _silent, prepare)
        total = share.values
    return image.crop(region).over(total, f"map of {last.name}")


def _itself(network):
    """What runs a network where nothing is prepared."""
    return network


def _silent(stage, voxels, kept):
    """Progress that nobody watches."""


def _run_stage(stage, sources, kept, progress, prepare):
    """Compute the blocks that are not done, each from `sources`: (volume, its first voxel in the image)."""
    with evaluating(stage.network), nn.memory_at_most(stage.budget):
        network = None if np.all(kept.done) else prepare(stage.network)
        for i, block in enumerate(stage.blocks(kept.block_shape)):
            if kept.done[i]:
                progress(stage.name, block.write.size, True)
                continue
            x = np.stack([volume.read_mirrored(block.read.shift(-b for b in begin)) for volume, begin in sources])
            kept.put(i, block.write.shift(-b for b in stage.region.begin), _predict_block(stage, network, block, x))
            progress(stage.name, block.write.size, False)


def _predict_block(stage, network, block, x):
    where = f"stage {stage.name!r}, block {block.write.begin}..{block.write.end}"
    try:
        values = predict(network, x)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):
            raise
        need = stage.bytes_of(block.write.shape) / GB
        raise BudgetTooSmall(f"{where}: the memory ran out, {need:.2f} GB were reckoned for it; lower "
                             "memory_budget_gb, or stop other programs") from error
    if values.shape != block.write.shape:
        raise CheckpointError(f"{where}: expected a map of {block.write.shape}, found {values.shape}: the network's "
                              f"field of view is not {stage.field_of_view}")
    if not np.isfinite(values).all():
        raise NonFiniteMap(f"{where}: expected finite numbers from the network, found NaN or infinity; "
                           "the weights of the checkpoint are not usable")
    return values


def predict(network, x):
    """Probability of boundary, ``softmax(network(x))[1]``, of one block.

    Parameters
    ----------
    network : callable, (1, C, Z, Y, X) to (1, 2, Z', Y', X')
        A module in eval mode, or a compiled one.
    x : ndarray, (C, Z, Y, X), float32
        No smaller than the field of view.

    Returns
    -------
    ndarray, (Z - fz + 1, Y - fy + 1, X - fx + 1), float32
    """
    with torch.inference_mode():
        logits = network(torch.from_numpy(np.ascontiguousarray(x, np.float32))[None])
        if logits.dim() != 5 or logits.shape[1] != 2:
            raise CheckpointError(f"network: expected 2 channels of logits (interior, boundary) as (1, 2, Z, Y, X), "
                                  f"found {tuple(logits.shape)}")
        return torch.sigmoid(logits[0, 1] - logits[0, 0]).numpy()


@contextlib.contextmanager
def evaluating(network):
    """Eval mode for a while: no dropout; every module gets its own mode back."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        yield network
    finally:
        for module, mode in modes.items():
            module.training = mode


def warm_up(networks):
    """Run each network once on its field of view, so that kernels are compiled and memory is as later on."""
    for i, (name, network) in enumerate(named(networks)):
        channels = min(i, 1) + 1
        with evaluating(network):
            predict(network, np.zeros((channels, *field_of_view(name, network, channels)), np.float32))


class MemoryStore:
    """Keeps maps in memory."""

    def stage(self, stage, number=0, shape=None):
        """Where the map of a stage goes in the pass of that number; nothing of it is done yet.

        `shape` is that of the map where it is not the one of the stage's region.
        """
        return MemoryMap(stage, shape or stage.region.shape)


class MemoryMap:
    """The map of a stage in memory.

    Attributes
    ----------
    values : sliceable, (Z, Y, X), float32
    block_shape : (z, y, x)
        How the stage is cut.
    done : sequence of bool
        For each block in raster order, whether it is finished.
    """

    def __init__(self, stage, shape):
        self.values = np.zeros(shape, np.float32)
        self.block_shape = stage.block_shape
        self.done = np.zeros(len(stage.blocks()), bool)

    def put(self, index, roi, values):
        """Keep a block's `values` at `roi` of the map, and that it is done."""
        self.values[roi.slices] = values
        self.done[index] = True

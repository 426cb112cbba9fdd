r"""Dense boundary maps of volumes of any size, block by block, through one network or a recursive chain of them.

A block reads its field of view's context from its real neighbours; only what lies outside the volume is mirrored, so
the result does not depend on how the volume was cut::

    image  ------------------------------+--> stage 2 --> boundary map
       \                                 |
        +--> stage 1 --> map, 2 p - 1 ---+        section by section, as stage 2 needs them (`znn.pipeline.sections`)

While a block is computed, the image of the next one is read and the map of the last one is written.
"""
import contextlib
import functools

import numpy as np
import torch

from data.normalise import scaled_map
from data.volume import Volume
from znn import nn
from znn.pipeline.averaging import Share, passes
from znn.pipeline.errors import BudgetTooSmall, CheckpointError, NonFiniteMap
from znn.pipeline.helpers import Helpers
from znn.pipeline.memory import GB
from znn.pipeline.planning import field_of_view, named
from znn.pipeline.sections import Placed, tasks


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
        Bytes in flight; maps that are kept in memory come on top of it.
    recursion_scaling : "fixed" or "stack"
        How a map is scaled for the next stage, see `data.scale_map`.
    progress : callable, optional
        ``progress(stage_name, voxels, kept)`` after every block; `kept` tells that the voxels need not be computed,
        since an earlier run has finished them, or all that reads them.
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
    store = MemoryStore() if store is None else store
    work = passes(networks, image, region, averaging, memory_budget=memory_budget, recursion_scaling=recursion_scaling,
                  known=store.known)
    return run(work, image, store, recursion_scaling, progress, prepare)


def infer_array(networks, array, **options):
    """`infer_volume` from a (Z, Y, X) float array to a float32 array of the same shape; the same options."""
    return infer_volume(networks, Volume.from_array(array), **options).read()


def run(work, image, store=None, recursion_scaling="fixed", progress=None, prepare=None):
    """Do what `averaging.passes` has planned; parameters and result as in `infer_volume`."""
    store = MemoryStore() if store is None else store
    prepare = functools.cache(prepare or _itself)
    region, total = work[0].groups[-1].last.region, None
    for number, each in enumerate(work):
        sources = [Placed(each.image, each.image.roi.begin)]
        for group in each.groups[:-1]:
            kept = store.kept(group, number)
            _run_group(group, each.image, sources, kept, recursion_scaling, progress or _silent, prepare)
            result = each.image.crop(group.last.region).over(kept.values, f"map of {group.last.name}")
            sources = [sources[0], Placed(scaled_map(result, recursion_scaling), group.last.region.begin)]
        kept = store.kept(each.groups[-1], number, region.shape)
        share = Share(kept, total, each.orientation, len(work) if each is work[-1] else 1)
        _run_group(each.groups[-1], each.image, sources, share, recursion_scaling, progress or _silent, prepare)
        total = share.values
    return image.crop(region).over(total, f"map of {work[0].groups[-1].last.name}")


def _itself(network):
    """What runs a network where nothing is prepared."""
    return network


def _silent(stage, voxels, kept):
    """Progress that nobody watches."""


def _run_group(group, image, sources, kept, scaling, progress, prepare):
    """Compute what is not done of a map; `sources` are the volumes that the first stage reads, all there already."""
    group = group.recut(kept.cut)
    number = {block.write: i for i, block in enumerate(group.last.blocks())}

    def read(task):
        """What of a block's input is there before the block's turn."""
        there = sources if task.stage.name == group.stages[0].name else sources[:1]
        return [source.read(task.block.read) for source in there]

    with contextlib.ExitStack() as stack:
        for stage in group.stages:
            stack.enter_context(evaluating(stage.network))
        stack.enter_context(nn.memory_at_most(group.network_bytes))
        helpers = stack.enter_context(Helpers())
        for task, parts in helpers.ahead(read, _tasks(group, image, kept, number, scaling, progress)):
            block = task.block
            x = np.stack(parts if task.held is None else [*parts, task.held.read(block.read)])
            values = _predict_block(task.stage, prepare(task.stage.network), block, x)
            if task.target is None:
                place = block.write.shift(-b for b in group.last.region.begin)
                helpers.behind(kept.put, number[block.write], place, values)
            else:
                task.target(values)
            progress(task.stage.name, block.write.size, False)


def _tasks(group, image, kept, number, scaling, progress):
    """The tasks of all columns, one after the other; `progress` is told of what need not be computed."""
    for stages in group.columns():
        found = tasks(stages, image, lambda block: kept.done[number[block.write]], scaling)
        for stage in stages:
            left = sum(task.block.write.size for task in found if task.stage is stage)
            if left < stage.region.size:
                progress(stage.name, stage.region.size - left, True)
        yield from found


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
    """Keeps maps in memory.

    Attributes
    ----------
    known : dict of str to Volume
        Stages whose maps over the whole image are there already.
    """

    def __init__(self, known=None):
        self.known = known or {}

    def kept(self, group, number=0, shape=None):
        """Where the map of a group's last stage goes in the pass of that number.

        `shape` is that of the map where it is not the one of the stage's region.
        """
        if group.last.name in self.known:
            return MemoryMap(group, self.known[group.last.name].read(group.last.region), True)
        return MemoryMap(group, np.zeros(shape or group.last.region.shape, np.float32), False)


class MemoryMap:
    """A map in memory.

    Attributes
    ----------
    values : sliceable, (Z, Y, X), float32
    cut : dict
        How the work is cut, see `groups.Group.cut`.
    done : sequence of bool
        For each block of the last stage in raster order, whether it is finished.
    """

    def __init__(self, group, values, done):
        self.values, self.cut = values, group.cut
        self.done = np.full(len(group.last.blocks()), done)

    def put(self, index, roi, values):
        """Keep a block's `values` at `roi` of the map, and that it is done."""
        self.values[roi.slices] = values
        self.done[index] = True

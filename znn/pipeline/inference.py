r"""Dense boundary maps of volumes of any size, block by block, through one network or a recursive chain of them.

A block reads its field of view's context from its real neighbours; only what lies outside the volume is mirrored, so
the result does not depend on how the volume was cut::

    image  ------------------------------+--> stage 2 --> boundary map
       \                                 |
        +--> stage 1 --> map, 2 p - 1 ---+        whole (in passes), or as far as the next stage needs it (in columns)

While a block is computed, the image of the next one is read and the map of the last one is written.
"""
import contextlib
import functools

import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from data.normalise import SCALINGS
from data.roi import Roi
from data.volume import Volume
from znn import nn
from znn.pipeline.averaging import averaged
from znn.pipeline.errors import BudgetTooSmall, CheckpointError, NonFiniteMap, WrongSetting, one_of
from znn.pipeline.helpers import Helpers
from znn.pipeline.memory import GB
from znn.pipeline.order import in_columns, in_passes
from znn.pipeline.planning import plan


def infer_volume(networks, image, store=None, region=None, memory_budget=GB, recursion_scaling="fixed", progress=None,
                 check=None, tta="off", columns=False):
    """The boundary map of a volume.

    Parameters
    ----------
    networks : sequence of (str, network), or of networks
        See `planning.plan`. Modules are used in eval mode and given back in the mode they came in.
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
    check : callable, optional
        Called between layers; what it raises ends the work.
    tta : str
        A key of `averaging.AVERAGES`: over which orientations maps are averaged.
    columns : bool
        Whether earlier maps are held only as far as needed, see `znn.pipeline.work`; with "fixed" scaling.

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
    work = plan(networks, image, region, memory_budget, tta, columns)
    return run(work, image, store, recursion_scaling, progress, check)


def infer_array(networks, array, **options):
    """`infer_volume` from a (Z, Y, X) float array to a float32 array of the same shape; the same options."""
    return infer_volume(networks, Volume.from_array(array), **options).read()


def run(work, image, store=None, recursion_scaling="fixed", progress=None, check=None):
    """Do what `plan` has planned; parameters and result as in `infer_volume`."""
    if work.column is not None and recursion_scaling != "fixed":
        raise WrongSetting(f"recursion_scaling: expected fixed where maps are not kept whole, found "
                           f"{recursion_scaling}, which needs their extremes; say stream=false")
    progress, check = progress or _silent, check or _silent
    work, maps = (MemoryStore() if store is None else store).open(work, image)
    order = in_passes if work.column is None else in_columns
    with Helpers() as helpers, callables(work.stages, lambda: (check(), helpers.check())) as call:
        tasks, whole = order(work, maps, image, recursion_scaling, progress), None
        for task, x in helpers.ahead(lambda task: _input(task, image), tasks):
            if task.source is not None:
                if task.source.values is not whole:
                    helpers.settle()                        # the map before is written to its end
                    whole = task.source.values
                _read_map(task, x)
            values = _predict_block(task, call[task.stage.name], x)
            if task.target.slow:
                helpers.behind(task.target.put, task.index, task.place, values)
            else:
                task.target.put(task.index, task.place, values)
            progress(task.stage.name, task.block.write.size, False)
    last = work.stages[-1]
    return image.crop(last.region).over(maps[last.name].values, f"map of {last.name}")


def _silent(*told):
    """Progress that nobody watches, a check that finds nothing."""


def _input(task, image):
    """The input of a block, (C, Z, Y, X), with the image in it."""
    x = np.empty((1 if task.source is None else 2, *task.block.read.shape), np.float32)
    x[0] = image.read_mirrored(task.block.read)
    return x


def _read_map(task, x):
    """Put the map before into the input of a block; section by section, for what scaling takes."""
    (z, *corner), (_, *extent) = task.block.read.begin, task.block.read.shape
    for i, section in enumerate(x[1]):
        section[:] = task.source.read(Roi((z + i, *corner), (1, *extent)))[0]


@contextlib.contextmanager
def callables(stages, check):
    """What computes each stage, by name: it calls `check` before each layer, and keeps to the memory of its blocks."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(nn.memory_at_most(max(s.network_bytes for s in stages)))
        stack.callback(register_module_forward_pre_hook(lambda layer, arguments: check()).remove)
        networks = {s.name: stack.enter_context(evaluating(s.network)) for s in stages}
        yield {name: each if isinstance(each, torch.nn.Module) else functools.partial(each, between=check)
               for name, each in networks.items()}


def _predict_block(task, network, x):
    stage, write = task.stage, task.block.write
    where = f"stage {stage.name!r}, block {write.begin}..{write.end}"
    try:
        values = averaged(functools.partial(predict, network), x, stage.field_of_view, stage.orientations)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):
            raise
        need = stage.bytes_of(write.shape) / GB
        raise BudgetTooSmall(f"{where}: the memory ran out, {need:.2f} GB were reckoned for it; lower "
                             "memory_budget_gb, or stop other programs") from error
    if values.shape != write.shape:
        raise CheckpointError(f"{where}: expected a map of {write.shape}, found {values.shape}: the network's "
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
        return (logits[0, 1] - logits[0, 0]).sigmoid_().numpy()


@contextlib.contextmanager
def evaluating(network):
    """Eval mode for a while: no dropout; every module gets its own mode back. What is compiled is so always."""
    if not isinstance(network, torch.nn.Module):
        yield network
        return
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        yield network
    finally:
        for module, mode in modes.items():
            module.training = mode


class MemoryStore:
    """Keeps maps in memory."""

    def open(self, work, image):
        """The plan to go by, and for each stage of `work.kept` where its map goes, by name; nothing is done yet."""
        return work, {stage.name: MemoryMap(stage) for stage in work.kept}


class MemoryMap:
    """The map of a stage in memory.

    Attributes
    ----------
    values : sliceable, (Z, Y, X), float32
    done : sequence of bool
        For each block in raster order, whether it is finished.
    slow : bool
        Whether `put` is worth a thread of its own.
    """

    slow = False

    def __init__(self, stage):
        self.values = np.zeros(stage.region.shape, np.float32)
        self.done = np.zeros(len(stage.blocks()), bool)

    def put(self, index, roi, values):
        """Keep a block's `values` at `roi` of the map, and that it is done."""
        self.values[roi.slices] = values
        self.done[index] = True

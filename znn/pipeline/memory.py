"""How much memory a network's activations take while it runs, found from its layers, and the blocks that fit a budget.

The network runs on torch's meta device, where tensors have shapes but no values. Whatever it allocates is counted from
its making to its release, so branches and sums and hand-written `forward`s count as they are, and nothing is computed.
"""
import copy
import math
import resource
import sys
import weakref
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from znn import nn
from znn.pipeline.errors import BudgetTooSmall

PROBE = 64                # voxels by which the probe exceeds the field of view; any number gives the same
READING_BYTES = 32        # a voxel of input while it is read: grey value, two float64 steps, float32, mirrored copies
CANDIDATES_PER_AXIS = 64
BLOCK_COST = 10_000       # what a block costs beside its voxels, in voxels: reading, packing weights, writing to disk
TOLERANCE = 1.05          # a cut this much dearer than the cheapest is as good, when its blocks are smaller
WORKSPACE = {"znn": 1.1, "torch": 2.0}     # what is held over what is counted, measured: torch rearranges its operands
GB = 1 << 30


@dataclass(frozen=True)
class Footprint:
    """Memory of a forward pass, as a function of the input's extent.

    Attributes
    ----------
    moments : tuple of tuple of (float, (z, y, x))
        For each moment the tensors alive: bytes of one position, and how many positions the tensor is smaller than
        the input along each axis.
    """

    moments: tuple

    def __call__(self, z, y, x):
        """Bytes at the worst moment for an input of (z, y, x) voxels: numbers, or arrays that broadcast."""
        sums = (sum(size * np.multiply(np.multiply(z - lost[0], y - lost[1], dtype=float), x - lost[2])
                    for size, lost in alive) for alive in self.moments)
        worst = next(sums)
        for other in sums:
            worst = np.maximum(worst, other)
        return worst


class _Watch(TorchDispatchMode):
    """Note which tensors are alive whenever one is made; inside a layer of the engine only its result is made."""

    def __init__(self, probe):
        super().__init__()
        self.probe, self.inside = probe, 0
        self.known, self.alive, self.moments = weakref.WeakSet(), {}, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if not self.inside:
            self.add(out)
        return out

    def add(self, out):
        """Note a tensor's memory, once, until it is released."""
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
            if storage is not None and storage not in self.known:
                self.known.add(storage)
                key = len(self.known), id(storage)
                self.alive[key] = self._size(tensor, storage.nbytes())
                weakref.finalize(storage, self.alive.pop, key)
                self.moments.add(tuple(sorted(self.alive.values())))

    def _size(self, tensor, nbytes):
        """(bytes of one position, positions lost); what is no volume counts as spread over the whole input."""
        spatial = tuple(tensor.shape[2:]) if tensor.dim() == 5 else self.probe
        return nbytes / math.prod(spatial), tuple(p - n for p, n in zip(self.probe, spatial))

    def enter(self, module, args):
        """Before a layer that the engine computes in one piece."""
        self.inside += 1

    def leave(self, module, args, out):
        """After it."""
        self.inside -= 1
        self.add(out)


def footprint(network, channels, field_of_view, fused=True):
    """What a network holds while it computes a block, the block's reading included; its weights are not counted.

    Parameters
    ----------
    network : torch.nn.Module
        Left as it is.
    channels : int
        Of the input.
    field_of_view : (z, y, x)
    fused : bool
        Whether a convolution and its activation are one operation, as in the engine's kernels; plain torch holds the
        result of each.

    Returns
    -------
    Footprint
    """
    probe = tuple(f + PROBE for f in field_of_view)
    ghost = copy.deepcopy(network).to("meta").eval()
    with ExitStack() as stack:
        watch = _Watch(probe)
        for layer in ghost.modules():
            if fused and isinstance(layer, (nn.Conv3d, nn.MaxFilter3d)):
                stack.callback(layer.register_forward_pre_hook(watch.enter).remove)
                stack.callback(layer.register_forward_hook(watch.leave).remove)
        stack.enter_context(torch.inference_mode())
        stack.enter_context(watch)
        x = torch.empty(1, channels, *probe, device="meta")
        ghost(x)
    reading = ((READING_BYTES + 4 * channels, (0, 0, 0)),)
    return Footprint((reading, *sorted(watch.moments)))


def block_shape(extent, field_of_view, need, budget, what="the network"):
    """Extent of the output block that costs about the least among those that fit the budget.

    The cost of a cut is the number of voxels read in all, context included, and something for each block; blocks of
    one axis are as equal as they can be. Of cuts that cost nearly the same, the one whose blocks take the least
    memory wins: less is lost when a run is stopped.

    Parameters
    ----------
    extent : (z, y, x)
        What is to be written.
    field_of_view : (z, y, x)
    need : Footprint
        Bytes for an input of (z, y, x) voxels.
    budget : float
        Bytes that one block may take.
    what : str
        Names the network in the message.

    Returns
    -------
    (z, y, x)

    Raises
    ------
    BudgetTooSmall
        If not even one voxel with its field of view fits.
    """
    context = [f - 1 for f in field_of_view]
    sizes = [_candidates(n) for n in extent]
    reads = [(s + c).reshape(shape) for s, c, shape in zip(sizes, context, ((-1, 1, 1), (-1, 1), (-1,)))]
    needs = need(*reads)
    if needs.min() > budget:
        raise BudgetTooSmall(f"memory budget: {what} needs at least {needs.min() / GB:.3f} GB for a block of one voxel "
                             f"and its field of view {tuple(field_of_view)}, found {max(budget, 0) / GB:.3f} GB beside "
                             "what the program holds itself; raise memory_budget_gb")
    counts = [-(-n // s) for n, s in zip(extent, sizes)]
    cost = _outer(*(n + k * c for n, k, c in zip(extent, counts, context))) + BLOCK_COST * _outer(*counts)
    cost[needs > budget] = np.inf
    good = np.argwhere(cost <= TOLERANCE * cost.min())
    least = min(good, key=lambda i: (needs[tuple(i)], cost[tuple(i)]))
    return tuple(int(s[i]) for s, i in zip(sizes, least))


def _outer(z, y, x):
    return z[:, None, None] * y[:, None].astype(float) * x


def _candidates(n):
    """Extents that cut n voxels into equal parts (the last one shorter), thinned out to a bounded number."""
    extents = np.unique(-(-n // np.arange(1, n + 1)))
    if len(extents) > CANDIDATES_PER_AXIS:
        extents = np.unique(extents[np.searchsorted(extents, np.geomspace(1, n, CANDIDATES_PER_AXIS).astype(int))])
    return extents.astype(np.int64)


def peak_memory():
    """Most bytes of main memory that this process has held at one time (its peak resident set)."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        pass
    # On Linux this would also count what the parent held when it started this process.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory_now():
    """Bytes of main memory that this process holds now; where the system does not say, its peak."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return peak_memory()

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

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from znn import nn
from znn.pipeline.errors import BudgetTooSmall

PROBE = 2048              # voxels by which the probe exceeds the field of view: borders no longer weigh anything
READING_BYTES = 32        # a voxel of input while it is read: grey value, two float64 steps, float32, mirrored copies
CANDIDATES_PER_AXIS = 96
GB = 1 << 30


class _LiveBytes(TorchDispatchMode):
    """Count the bytes of tensors that are alive; inside a layer of the engine only its result is made."""

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self.inside = 0
        self.known = weakref.WeakSet()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if not self.inside:
            self.add(out)
        return out

    def add(self, out):
        """Count a tensor's memory, once, until it is released."""
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
            if storage is not None and storage not in self.known:
                self.known.add(storage)
                self.live += storage.nbytes()
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self._release, storage.nbytes())

    def _release(self, nbytes):
        self.live -= nbytes

    def enter(self, module, args):
        """Before a layer that the engine computes in one piece."""
        self.inside += 1

    def leave(self, module, args, out):
        """After it."""
        self.inside -= 1
        self.add(out)


def peak_bytes(network, channels, shape, fused=True):
    """Bytes of all tensors, the input included, at the moment when most are alive in a forward pass.

    Parameters
    ----------
    network : torch.nn.Module
        Left as it is; weights are not counted.
    channels : int
        Of the input.
    shape : (z, y, x)
        Extent of the input, no smaller than the field of view.
    fused : bool
        Whether a convolution and its activation are one operation, as in the engine's kernels; plain torch holds the
        result of each.

    Returns
    -------
    int
    """
    ghost = copy.deepcopy(network).to("meta").eval()
    with ExitStack() as stack:
        counter = _LiveBytes()
        for layer in ghost.modules():
            if fused and isinstance(layer, (nn.Conv3d, nn.MaxFilter3d)):
                stack.callback(layer.register_forward_pre_hook(counter.enter).remove)
                stack.callback(layer.register_forward_hook(counter.leave).remove)
        stack.enter_context(torch.inference_mode())
        stack.enter_context(counter)
        x = torch.empty(1, channels, *shape, device="meta")
        ghost(x)
    return counter.peak


def bytes_per_voxel(network, channels, field_of_view, fused=True):
    """Bytes that a voxel of a block's input takes at the peak, reading included; an upper bound for any block.

    Layers shrink what passes through them, so a block takes at most this times its voxels, and less by its borders.
    """
    shape = tuple(f + (PROBE if f > 1 else 0) for f in field_of_view)
    density = peak_bytes(network, channels, shape, fused) / math.prod(shape)
    return max(density, READING_BYTES + 4 * channels)


def block_shape(extent, field_of_view, density, budget, what="the network"):
    """Extent of the output block that costs least among those that fit the budget.

    The cost of a cut is the number of voxels read in all, context included; blocks of one axis are as equal as they
    can be. Of cuts that cost the same, the finer one wins: less is lost when a run is stopped.

    Parameters
    ----------
    extent : (z, y, x)
        What is to be written.
    field_of_view : (z, y, x)
    density : float
        `bytes_per_voxel` of the input.
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
    sizes = [_candidates(n) for n in extent]
    reads = [s + f - 1 for s, f in zip(sizes, field_of_view)]
    needs = density * _outer(*reads)
    if needs.min() > budget:
        raise BudgetTooSmall(f"memory budget: {what} needs at least {needs.min() / GB:.3f} GB for a block of one voxel "
                             f"and its field of view {tuple(field_of_view)}, found {max(budget, 0) / GB:.3f} GB beside "
                             "what the program holds itself; raise memory_budget_gb")
    total = _outer(*(-(-n // s) * f_1 + n for n, s, f_1 in zip(extent, sizes, (f - 1 for f in field_of_view))))
    cost = np.where(needs <= budget, total, np.inf)
    best = np.argwhere(cost == cost.min())
    least = min(best, key=lambda i: (_outer(*reads)[tuple(i)], tuple(-i)))
    return tuple(int(s[i]) for s, i in zip(sizes, least))


def _candidates(n):
    """Extents that cut n voxels into equal parts (the last one shorter), thinned out to a bounded number."""
    extents = np.unique(-(-n // np.arange(1, n + 1)))
    if len(extents) > CANDIDATES_PER_AXIS:
        extents = extents[np.unique(np.geomspace(1, len(extents), CANDIDATES_PER_AXIS).astype(int)) - 1]
    return extents.astype(np.int64)


def _outer(z, y, x):
    return z[:, None, None].astype(float) * y[:, None] * x


def peak_memory():
    """Most bytes of main memory that this process has held at one time (its peak resident set)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory_now():
    """Bytes of main memory that this process holds now; where the system does not say, its peak."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return peak_memory()

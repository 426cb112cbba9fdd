"""How much memory a network's activations take while it runs, found from its layers before anything is computed.

The network runs on torch's meta device, where tensors have shapes but no values. Whatever it allocates is counted from
its making to its release, so branches and sums and hand-written `forward`s count as they are, and nothing is computed.
"""
import contextlib
import copy
import ctypes
import math
import resource
import sys
import weakref
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from znn import nn

PROBE = 64                # voxels by which the probe exceeds the field of view; any number gives the same
WORKSPACE = {"znn": 1.1, "torch": 2.0}     # what is held over what is counted, measured: torch rearranges its operands
GB = 1 << 30
M_MMAP_THRESHOLD, LARGE = -3, 1 << 20


@dataclass(frozen=True)
class Footprint:
    """Memory of a forward pass, as a function of the input's extent.

    Attributes
    ----------
    moments : tuple of tuple of (float, (z, y, x))
        For each moment the tensors alive: bytes of one position, and how many positions the tensor is smaller than
        the input along each axis.
    excess : float
        What is held for each byte that is counted so.
    beside : float
        Bytes for each voxel of the input that are held at all moments too, by others.
    """

    moments: tuple
    excess: float = 1.0
    beside: float = 0.0

    def __call__(self, z, y, x):
        """Bytes at the worst moment for an input of (z, y, x) voxels: numbers, or arrays that broadcast."""
        return self.own(z, y, x) + self.beside * np.multiply(np.multiply(z, y, dtype=float), x)

    def own(self, z, y, x):
        """Bytes of it that the network holds itself."""
        sums = (sum(size * np.multiply(np.multiply(z - lost[0], y - lost[1], dtype=float), x - lost[2])
                    for size, lost in alive) for alive in self.moments)
        worst = next(sums)
        for other in sums:
            worst = np.maximum(worst, other)
        return self.excess * worst


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
    """What a network holds while it computes a block; its weights are not counted.

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
    with contextlib.ExitStack() as stack:
        watch = _Watch(probe)
        for layer in ghost.modules():
            if fused and isinstance(layer, (nn.Conv3d, nn.MaxFilter3d)):
                stack.callback(layer.register_forward_pre_hook(watch.enter).remove)
                stack.callback(layer.register_forward_hook(watch.leave).remove)
        stack.enter_context(torch.inference_mode())
        stack.enter_context(watch)
        x = torch.empty(1, channels, *probe, device="meta")
        ghost(x)
    return Footprint(tuple(sorted(watch.moments)))


def return_freed():
    """Have the C library give each large block back to the system when it is freed, where it is glibc.

    By default it comes to keep blocks of up to 32 MB for itself, in a heap that only shrinks from its end.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE)


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

"""What a network takes for a block of any extent, memory and work, found from its layers before anything is computed.

A compiled network knows its values and when each is needed (`znn.graph.cost`). Any other module runs on torch's meta
device, where tensors have shapes but no values: whatever it allocates is counted from its making to its release, so
branches and sums and hand-written `forward`s count as they are.
"""
import copy
import math
import weakref
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from znn import nn
from znn.graph import cost

PROBE = 64                # voxels by which the probe exceeds the field of view; any number gives the same
CONVOLUTIONS = (nn.Conv3d, torch.nn.Conv3d)
WHOLE = (0, 0, 0)


@dataclass(frozen=True)
class Demand:
    """Memory and work of a forward pass, as functions of the input's extent.

    Attributes
    ----------
    moments : tuple of tuple of (float, (z, y, x))
        For each moment the tensors alive: bytes of one position, and how many positions the tensor is smaller than
        the input along each axis. The input is one of them.
    products : tuple of (float, (z, y, x))
        The same of the products that convolutions add up.
    excess : float
        Memory taken for each byte that the moments count.
    flow : tuple of (float, (z, y, x))
        What is held beside, at all moments.
    """

    moments: tuple
    products: tuple = ((1.0, WHOLE),)
    excess: float = 1.0
    flow: tuple = ()

    def __call__(self, z, y, x):
        """Bytes at the worst moment for an input of (z, y, x) voxels: numbers, or arrays that broadcast."""
        return self.excess * self.own(z, y, x) + _sum(self.flow, z, y, x)

    def own(self, z, y, x):
        """Bytes of the network alone, as the moments count them."""
        worst = _sum(self.moments[0], z, y, x)
        for alive in self.moments[1:]:
            worst = np.maximum(worst, _sum(alive, z, y, x))
        return worst

    def beside(self, *terms):
        """The demand with more that is held at all moments."""
        return replace(self, flow=(*self.flow, *terms))

    @property
    def products_per_voxel(self):
        """Products for a voxel of output in a block without borders."""
        return sum(amount for amount, _ in self.products)

    def work(self, extents, counts, field_of_view):
        """Products in all when (z, y, x) voxels of output are cut into so many blocks along each axis.

        Parameters
        ----------
        extents : (z, y, x)
        counts : (z, y, x) of numbers, or of arrays that broadcast
        field_of_view : (z, y, x)
        """
        return sum(amount * math.prod(n + k * (f - 1 - l)
                                      for n, k, f, l in zip(extents, counts, field_of_view, lost))
                   for amount, lost in self.products)


def _sum(terms, z, y, x):
    return sum(size * np.multiply(np.multiply(z - lost[0], y - lost[1], dtype=float), x - lost[2])
               for size, lost in terms)


def demand(network, channels, field_of_view, fused=True):
    """What a network holds and does while it computes a block; its weights are not counted.

    Parameters
    ----------
    network : torch.nn.Module or znn.graph.compiled.Compiled
        Left as it is.
    channels : int
        Of the input.
    field_of_view : (z, y, x)
    fused : bool
        Of a module: whether a convolution and its activation are one operation, as in the engine's kernels; plain
        torch holds the result of each.

    Returns
    -------
    Demand
    """
    if not isinstance(network, torch.nn.Module):
        entered = 4 * channels, WHOLE
        moments = tuple((entered, *alive) for alive in cost.held(network.function))
        return Demand(moments, cost.multiplications(network.function) or Demand.products)
    probe = tuple(f + PROBE for f in field_of_view)
    ghost = copy.deepcopy(network).to("meta").eval()
    with ExitStack() as stack:
        watch = _Watch(probe)
        for layer in ghost.modules():
            if fused and isinstance(layer, (nn.Conv3d, nn.MaxFilter3d)):
                stack.callback(layer.register_forward_pre_hook(watch.enter).remove)
                stack.callback(layer.register_forward_hook(watch.leave).remove)
            if isinstance(layer, CONVOLUTIONS):
                stack.callback(layer.register_forward_hook(watch.multiplied).remove)
        stack.enter_context(torch.inference_mode())
        stack.enter_context(watch)
        x = torch.empty(1, channels, *probe, device="meta")
        ghost(x)
    return Demand(tuple(sorted(watch.moments)), tuple(watch.products) or Demand.products)


class _Watch(TorchDispatchMode):
    """Note which tensors are alive whenever one is made; inside a layer of the engine only its result is made."""

    def __init__(self, probe):
        super().__init__()
        self.probe, self.inside = probe, 0
        self.known, self.alive, self.moments, self.products = weakref.WeakSet(), {}, set(), []

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
        return nbytes / math.prod(spatial), self._lost(spatial)

    def _lost(self, spatial):
        return tuple(p - n for p, n in zip(self.probe, spatial))

    def enter(self, module, args):
        """Before a layer that the engine computes in one piece."""
        self.inside += 1

    def leave(self, module, args, out):
        """After it."""
        self.inside -= 1
        self.add(out)

    def multiplied(self, module, args, out):
        """After a convolution."""
        self.products.append((float(module.weight.numel()), self._lost(out.shape[2:])))

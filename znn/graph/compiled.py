"""`znn.compile`: a network as a callable that does nothing but inference."""
from collections import OrderedDict

import numba
import numpy as np
import torch

from znn.codegen import target
from znn.graph.calibration import Observer
from znn.graph.errors import GraphError
from znn.graph.executor import Executable
from znn.graph.passes import stages
from znn.graph.passes.precision import ARRAYS
from znn.graph.trace import trace
from znn.runtime import arena, database

INSTRUCTIONS = {"bf16": "dot bf16", "int8": "dot u8"}  # without which a precision is no faster than fp32
KEPT = 16  # extents that stay ready to run: the blocks of a volume have up to eight
AXES = "(N, channels, z, y, x)"


def compile(net, precision="fp32", channels=None, without=(), samples=None, ranges=None):
    """A network for inference on this processor.

    Parameters
    ----------
    net : torch.nn.Module
        Of dense layers, see docs/inference.md; computed as in eval mode, with the weights that it has now.
    precision : str
        "fp32", "fp64", or "bf16": all but the first and the last convolutions multiply bf16 numbers, sums stay float32;
        or "int8": all but the first multiply integers of eight bits, which stand for numbers of ranges that are to be
        known.
    channels : int, optional
        Of the input; unless given, `in_channels` of the network or of its first layer that has any.
    without : collection of str
        Passes (`znn.graph.passes.PASSES`) that are left out, to see what they bring.
    samples : iterable of (ndarray or Tensor), (N, channels, z, y, x), optional
        For "int8": inputs like those to come, from which the ranges are learned.
    ranges : dict, optional
        For "int8", in place of samples: the attribute `ranges` of what was compiled before.

    Returns
    -------
    Compiled

    Raises
    ------
    UnsupportedLayer
        If the network does what cannot be compiled; the message names the layer.
    IllTyped
        If a layer does not fit the one before it.
    GraphError
        If there is no such precision or pass, or samples or ranges do not belong to it.
    """
    traced = trace(net, channels)
    if samples is not None:
        if ranges is not None:
            raise GraphError("samples, ranges: expected one of them, found both: leave one away")
        observer = Observer(Compiled(stages(traced, "fp32", without)))
        for x in samples:
            observer(x)
        ranges = observer.ranges
    return Compiled(stages(traced, precision, without, ranges), ranges)


def has_instruction(precision):
    """Whether the processor at hand has the instruction that a precision is made for; those of one number need none."""
    where = target.current()
    return precision not in INSTRUCTIONS or bool(where.instruction(INSTRUCTIONS[precision],
                                                                   where.lanes(np.dtype(np.float32))))


class Compiled:
    """A network ready for inference, whatever the extent of its input.

    Kernels are looked up, and memory is planned, when an extent is first met, and again after this process has stored
    schedules (`znn.runtime.database`).

    Attributes
    ----------
    stages : dict of str to znn.graph.ir.Function
        The network as it was traced, and after each pass.
    function : Function
        The last of them, which is run.
    ranges : dict or None
        What int8 was calibrated to: by variable the largest magnitude of each channel.
    in_channels : int
    field_of_view : (z, y, x)
    """

    def __init__(self, stages, ranges=None):
        self.ranges = ranges
        self.stages, self.function = stages, list(stages.values())[-1]
        self._type, self._ready = self.function.params[0].type, OrderedDict()
        self.in_channels = self._type.shape[0]
        self.field_of_view = tuple(self.function.least[extent.symbol] for extent in self._type.shape[1:])

    @property
    def text(self):
        """The function that is run, as `znn.graph.text.parse` reads it."""
        return str(self.function)

    def __repr__(self):
        return f"<compiled {self.function.name}, {self._type} -> {self.function.result.type}>"

    def __call__(self, x, between=None, watch=None):
        """What the network computes of `x`.

        Parameters
        ----------
        x : ndarray or Tensor, (N, channels, z, y, x)
            No smaller than the field of view; converted to the element type of the function where it is of another.
        between : callable, optional
            Called before each kernel; what it raises ends the computation.
        watch : callable, optional
            ``watch(name, values)`` is called after each kernel, as by `Executable.run`.

        Returns
        -------
        ndarray or Tensor, as x is, (N, out, z', y', x')
            Without a gradient.

        Raises
        ------
        GraphError
            If x has other axes or channels, or is too small.
        """
        if isinstance(x, torch.Tensor):
            return torch.from_numpy(self(x.detach().cpu().numpy(), between, watch))
        x = np.ascontiguousarray(x, ARRAYS[self._type.dtype])
        if x.ndim != 5:
            raise GraphError(f"{self.function.name}: expected an input {AXES}, found an array of shape {x.shape}: add "
                             "the missing axes, as by x[None, None]")
        ready = self._executable(x.shape[1:])
        out = arena.empty((x.shape[0], *ready.function.result.type.shape), x.dtype)
        for volume, result in zip(x, out):
            ready.run(volume, result, between, watch)
        return out

    def peak_bytes(self, extent):
        """Bytes that a volume of (z, y, x) voxels takes beside itself: what lies between, what kernels work in, and the
        result. Nothing is computed."""
        return self._executable((self.in_channels, *extent)).peak_bytes

    def _executable(self, shape):
        """The executable for an input of this shape, made when it is first asked for."""
        key = shape, numba.get_num_threads(), target.current().name, database.edition()
        found = self._ready.pop(key, None) or Executable(self._for(shape))
        self._ready[key] = found
        while len(self._ready) > KEPT:
            self._ready.popitem(last=False)
        return found

    def _for(self, shape):
        extent, least = tuple(shape[1:]), self.field_of_view
        if shape[0] != self.in_channels or any(n < m for n, m in zip(extent, least)):
            raise GraphError(f"{self.function.name}: expected an input of {self.in_channels} channel(s) and at least "
                             f"{least} voxels (z, y, x), found {shape[0]} and {extent}: give it these channels, and no "
                             "less than its field of view")
        return self.function.at(dict(zip((e.symbol for e in self._type.shape[1:]), extent)))

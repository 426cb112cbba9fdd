"""A function of known extents, ready to run: every kernel looked up, weights laid out, memory planned.

A run asks for one block of memory, which the runtime's arena keeps for the next one, and makes one call a step. What is
there already, as a part of its input or next to what it is joined with, is no step.
"""
import itertools

import numpy as np

from znn.codegen.group import GROUPS, elements
from znn.graph import memory
from znn.graph.ir import Var
from znn.graph.operators import OPERATORS
from znn.graph.passes.precision import ARRAYS
from znn.runtime import arena, groups
from znn.runtime.elementwise import elementwise
from znn.runtime.pool import max_filter
from znn.runtime.prepared import Convolution, mixing
from znn.runtime.quantised import dequantise, quantise

BYTES = np.dtype(np.uint8)


class Executable:
    """A function of known extents as steps over planned memory.

    It may be run from several threads at once. The number of numba's threads when it runs must be at most that when it
    was made.

    Parameters
    ----------
    function : Function
        Of known extents; its input and its result "f32" or "f64".

    Attributes
    ----------
    plan : znn.graph.memory.Plan
    """

    def __init__(self, function):
        self.function = function
        kernels = {each.var.name: KERNELS[each.call.op](each.call, function.weights) for each in function.lets}
        self.plan = memory.plan(function, {name: k.scratch_bytes for name, k in kernels.items()})
        homes = self.plan.homes
        self._steps = [(kernels[each.var.name], each) for each in function.lets
                       if kernels[each.var.name].has_work(each.var, homes)]
        self._own_result = homes[function.result.name] == (function.result.name, 0)

    @property
    def peak_bytes(self):
        """Bytes that a run takes: of its arena and of its result, which one step may write while others are live."""
        return self.plan.peak + self.function.result.type.nbytes

    def run(self, x, out, between=None, watch=None):
        """Compute the result.

        Parameters
        ----------
        x : ndarray, (channels, z, y, x)
            Contiguous, of the type and shape of the function's parameter.
        out : ndarray, (channels, z, y, x)
            Where the result is written; contiguous, apart from x.
        between : callable, optional
            Called before each step; what it raises ends the run.
        watch : callable, optional
            ``watch(name, values)`` is called after each step for what it has computed, an array that is not kept.
        """
        param, result = self.function.params[0], self.function.result
        block = arena.empty((self.plan.peak,), BYTES)
        held = {name: block[offset:] for name, offset in self.plan.offsets.items()}
        held[param.name] = x.reshape(-1).view(BYTES)
        if self._own_result:
            held[result.name] = out.reshape(-1).view(BYTES)

        def array(var):
            if not isinstance(var, Var):
                return None
            root, offset = self.plan.homes[var.name]
            numbers = held[root][offset:offset + var.type.nbytes].view(ARRAYS[var.type.dtype])
            channels, *extent = var.type.shape
            return numbers.reshape(elements(_group(var), channels), *extent)

        for kernel, each in self._steps:
            if between is not None:
                between()
            scratch = held.get(memory.workspace(each.var.name))
            kernel.run(array(each.var), [array(a) for a in each.call.args],
                       None if scratch is None else scratch[:kernel.scratch_bytes])
            if watch is not None:
                watch(each.var.name, array(each.var))
        if not self._own_result:
            np.copyto(out, array(result))


def _group(var):
    """The group that a value is held in, None for one number an element."""
    return GROUPS.get(var.type.dtype)


class _Kernel:
    """What computes a call.

    Attributes
    ----------
    scratch_bytes : int
        Of memory that it works in.
    """

    scratch_bytes = 0

    def __init__(self, call, weights):
        self.call = call

    def has_work(self, var, homes):
        """Whether anything is to be done to bind `var`, given where the values are."""
        return True


class _Convolution(_Kernel):
    def __init__(self, call, weights):
        super().__init__(call, weights)
        w = weights[call["weight"].name]
        bias, factors, *mix = (call[name] and weights[call[name].name]
                               for name in ("bias", "factors", "mix", "mix_bias"))
        x_shape, group = (1, *call["x"].type.shape), _group(call["x"])
        if call["mix"] is None:
            self._prepared = Convolution(x_shape, w, bias, call["dilation"], call["activation"],
                                         call["onto"] is not None, group, GROUPS.get(call["result"]), factors,
                                         call["zero"])
        else:
            self._prepared = mixing(x_shape, w, bias, call["dilation"], call["activation"], group, *mix)
        self._dtype = w.dtype
        self.scratch_bytes = int(np.prod(self._prepared.scratch_shape)) * w.dtype.itemsize

    def run(self, out, operands, scratch):
        x, _, _, onto, *_ = operands
        if onto is not None and onto.ctypes.data != out.ctypes.data:
            np.copyto(out, onto)
        scratch = scratch if scratch is None else scratch.view(self._dtype).reshape(self._prepared.scratch_shape)
        self._prepared.run(out[None], x[None], scratch)


class _Maximum(_Kernel):
    def run(self, out, operands, scratch):
        window, dilation, group = self.call["window"], self.call["dilation"], _group(self.call["x"])
        if group:
            groups.max_filter(out, operands[0], window, dilation, group)
        else:
            max_filter(operands[0][None], window, dilation, out[None])


class _Voxelwise(_Kernel):
    def __init__(self, call, weights):
        super().__init__(call, weights)
        numbers = [name for name in OPERATORS[call.op].operands if name in ("bias", "by")]
        self._numbers = {name: weights[call[name].name] for name in numbers}
        self._activation = (call["a"], call["b"]) if call.op == "tanh" else "relu" if call.op == "relu" else None
        self._adds = call.op == "add"

    def run(self, out, operands, scratch):
        plus, group = operands[1] if self._adds else None, _group(self.call["x"])
        if group:
            groups.elementwise(out, operands[0], group, plus, **self._numbers, activation=self._activation)
        else:
            elementwise(out, operands[0], plus, **self._numbers, activation=self._activation)


class _Cast(_Kernel):
    def __init__(self, call, weights):
        super().__init__(call, weights)
        self._by = call["by"] and weights[call["by"].name]

    def run(self, out, operands, scratch):
        narrow = self.call["to"] in GROUPS
        if self._by is None:
            (groups.to_groups if narrow else groups.from_groups)(out, operands[0])
        else:
            (quantise if narrow else dequantise)(out, operands[0], self._by, self.call["zero"])


class _Concat(_Kernel):
    def has_work(self, var, homes):
        root, at = homes[var.name]
        starts = itertools.accumulate((a.type.nbytes for a in self.call.args), initial=at)
        return any(homes[a.name] != (root, start) for a, start in zip(self.call.args, starts))

    def run(self, out, operands, scratch):
        first = 0
        for part in operands:
            place = out[first:first + len(part)]
            if place.ctypes.data != part.ctypes.data:
                np.copyto(place, part)
            first += len(part)


class _Part(_Kernel):
    """Channels lie where their volume lies."""

    def has_work(self, var, homes):
        return False


class _Crop(_Kernel):
    def run(self, out, operands, scratch):
        low = self.call["low"]
        np.copyto(out, operands[0][:, *(slice(a, a + n) for a, n in zip(low, out.shape[1:]))])


KERNELS = {"conv3d": _Convolution, "max_filter": _Maximum, "concat": _Concat, "channels": _Part, "crop": _Crop,
           "cast": _Cast,
           **dict.fromkeys(("bias", "scale", "relu", "tanh", "add"), _Voxelwise)}

"""How each layer, and each operation that a `forward` may do itself, is written as calls of operators.

A converter gets the `Trail` that is being made, the layer (none for an operation), and the operands as the network
gives them: variables, layers, tensors of weights, numbers.
"""
import operator
from numbers import Real

import torch
from torch import nn as tnn
from torch.nn import functional as F

from znn import nn
from znn.graph.errors import UnsupportedLayer
from znn.graph.ir import Var
from znn.graph.operators import AXES


def converter(layer):
    """The converter of a module, None where there is none; a subclass with a `forward` of its own has none."""
    return next((convert for kind, convert in LAYERS.items()
                 if isinstance(layer, kind) and type(layer).forward is kind.forward), None)


def _convolution(trail, layer, x, *others):
    terms = [(x, layer.weight, layer.dilation, trail.layer)]
    terms += [(x2, m.weight, m.dilation, trail.names[m]) for m, x2 in others]
    biases = [m.bias for m in (layer, *(m for m, _ in others)) if m.bias is not None]
    return _sum_of(trail, terms, sum(biases[1:], biases[0]) if biases else None,
                   layer.activation and layer.activation.kind)


def _functional_convolution(trail, x, weight, bias=None, dilation=(1, 1, 1), activation=None, plus=()):
    terms = [(x, weight, dilation, trail.layer)]
    terms += [(x2, w2, d2, f"{trail.layer}.plus{i}") for i, (x2, w2, d2) in enumerate(plus)]
    return _sum_of(trail, terms, bias, activation)


def _sum_of(trail, terms, bias, activation):
    y = None
    for x, weight, dilation, name in terms:
        one = trail.emit("conv3d", x, trail.weight("weight", weight, of=name), dilation=nn.triple(dilation))
        y = one if y is None else trail.emit("add", y, one)
    if bias is not None:
        y = trail.emit("bias", y, trail.weight("bias", bias))
    if activation is None:
        return y
    return _relu(trail, y) if activation == "relu" else trail.emit("tanh", y, a=activation[0], b=activation[1])


def _torch_convolution(trail, layer, x):
    _only(trail, layer, padding=(0, 0, 0), stride=(1, 1, 1), groups=1,
          mend="dense networks are valid, at every voxel: pad no layer, dilate after poolings in place of strides")
    return _sum_of(trail, [(x, layer.weight, layer.dilation, trail.layer)], layer.bias, None)


def _torch_pooling(trail, layer, x):
    window = _triple(layer.kernel_size)
    _only(trail, layer, padding=(0, 0, 0), stride=(1, 1, 1), ceil_mode=False, return_indices=False,
          mend="use znn.nn.MaxFilter3d, and multiply the dilation of what follows by the stride (docs/networks.md)")
    return trail.emit("max_filter", x, window=window, dilation=_triple(layer.dilation))


def _only(trail, layer, mend, **expected):
    """Raise unless the layer's attributes are as expected."""
    for name, value in expected.items():
        found = getattr(layer, name)
        found = (0, 0, 0) if found == "valid" else found
        if (_triple(found) if isinstance(value, tuple) and not isinstance(found, str) else found) != value:
            raise UnsupportedLayer(f"{trail.layer} ({type(layer).__name__}): expected {name} {value}, found {found}: "
                                   f"{mend}")


def _triple(value):
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * 3


def _normalisation(trail, layer, x):
    if layer.running_mean is None:
        raise UnsupportedLayer(f"{trail.layer} (BatchNorm3d): expected running statistics, found none: "
                               "track_running_stats=True")
    by = 1 / torch.sqrt(layer.running_var.double() + layer.eps)
    by = by if layer.weight is None else by * layer.weight.double()
    bias = -layer.running_mean.double() * by
    bias = bias if layer.bias is None else bias + layer.bias.double()
    dtype = layer.running_mean.dtype
    y = trail.emit("scale", x, trail.weight("scale", by.to(dtype)))
    return trail.emit("bias", y, trail.weight("bias", bias.to(dtype)))


def _relu(trail, x, inplace=False):
    return trail.emit("relu", x)


def _same(trail, x, *_, **__):
    return x


def _functional_dropout(trail, x, p=0.5, training=True, inplace=False):
    if training:
        raise UnsupportedLayer(f"{trail.layer} (dropout): expected training=self.training, found dropout at all times: "
                               "use znn.nn.Dropout")
    return x


def _add(trail, x, y):
    if isinstance(x, Var) and isinstance(y, Var):
        return trail.emit("add", x, y)
    x, number = _and_number(trail, x, y)
    return trail.emit("bias", x, trail.numbers("bias", number, x))


def _multiply(trail, x, y):
    x, number = _and_number(trail, x, y)
    return trail.emit("scale", x, trail.numbers("scale", number, x))


def _and_number(trail, x, y):
    """The operand that is a volume, and the other one: a number, or a tensor of one for each channel."""
    volume, number = (x, y) if isinstance(x, Var) else (y, x)
    shape = tuple(number.shape) if isinstance(number, torch.Tensor) else None
    channels = (volume.type.shape[0], 1, 1, 1)
    if not (isinstance(number, Real) or shape in ((), (1,), channels, (1, *channels))):
        found = number if shape is None else f"a tensor {shape}"
        raise UnsupportedLayer(f"{trail.layer}: expected a number, or a tensor {channels} of one for each channel, "
                               f"beside the volume {volume}, found {found}: use a layer")
    return volume, number


def _subtract(trail, x, y):
    return _add(trail, x, _negative(trail, y))


def _negative(trail, x):
    return _multiply(trail, x, -1) if isinstance(x, Var) else -x


def _divide(trail, x, y):
    if isinstance(y, Var):
        raise UnsupportedLayer(f"{trail.layer}: expected a number to divide by, found {y}: use a layer")
    return _multiply(trail, x, 1 / y)


def _concat(trail, tensors, dim=0):
    if dim not in (1, -4):
        raise UnsupportedLayer(f"{trail.layer} (cat): expected dim=1, the channels, found {dim}: join along channels")
    return trail.emit("concat", *tensors)


def _part(trail, x, index):
    """``x[:, first:end, low:-high, ...]``."""
    index = index if isinstance(index, tuple) else (index,)
    if Ellipsis in index:
        at = index.index(Ellipsis)
        index = (*index[:at], *(slice(None),) * (6 - len(index)), *index[at + 1:])
    index = (*index, *(slice(None),) * (5 - len(index)))
    plain = all(isinstance(i, slice) and i.step in (None, 1) for i in index)
    if not (plain and index[0] == slice(None) and all(_inwards(i) for i in index[2:])):
        raise UnsupportedLayer(f"{trail.layer} (getitem): expected x[:, first:end, low:-high, low:-high, low:-high], "
                               f"of channels and of {', '.join(AXES)}, found {index}: write it so")
    first, end, _ = index[1].indices(x.type.shape[0])
    if (first, end) != (0, x.type.shape[0]):
        x = trail.emit("channels", x, first=first, end=end)
    low, high = tuple(i.start or 0 for i in index[2:]), tuple(-(i.stop or 0) for i in index[2:])
    return trail.emit("crop", x, low=low, high=high) if any(low + high) else x


def _inwards(cut):
    """Whether a slice of an axis of unknown extent says how much goes at either side."""
    return (cut.start or 0) >= 0 and (cut.stop is None or cut.stop < 0)


LAYERS = {
    nn.Conv3d: _convolution,
    nn.MaxFilter3d: lambda trail, layer, x: trail.emit("max_filter", x, window=layer.window, dilation=layer.dilation),
    nn.Tanh: lambda trail, layer, x: trail.emit("tanh", x, a=layer.a, b=layer.b),
    tnn.ReLU: lambda trail, layer, x: _relu(trail, x),
    tnn.Tanh: lambda trail, layer, x: trail.emit("tanh", x),
    tnn.Conv3d: _torch_convolution,
    tnn.MaxPool3d: _torch_pooling,
    tnn.BatchNorm3d: _normalisation,
    **dict.fromkeys((nn.Dropout, tnn.Dropout, tnn.Dropout3d, tnn.AlphaDropout, tnn.Identity),
                    lambda trail, layer, x: x),
}
IN_PLACE = {operator.iadd: _add, operator.isub: _subtract, operator.imul: _multiply, operator.itruediv: _divide}
FUNCTIONS = {
    **IN_PLACE,
    nn.conv3d: _functional_convolution,
    nn.max_filter3d: lambda trail, x, window, dilation=(1, 1, 1): trail.emit(
        "max_filter", x, window=nn.triple(window), dilation=nn.triple(dilation)),
    **dict.fromkeys((nn.dropout, F.dropout, F.dropout3d), _functional_dropout),
    **dict.fromkeys((torch.relu, F.relu), _relu),
    **dict.fromkeys((torch.tanh, F.tanh), lambda trail, x: trail.emit("tanh", x)),
    **dict.fromkeys((operator.add, torch.add), _add),
    **dict.fromkeys((operator.sub, torch.sub), _subtract),
    **dict.fromkeys((operator.mul, torch.mul), _multiply),
    **dict.fromkeys((operator.truediv, torch.div), _divide),
    **dict.fromkeys((operator.neg, torch.neg), _negative),
    **dict.fromkeys((torch.cat, torch.concat), _concat),
    operator.getitem: _part,
}
METHODS = {
    "relu": _relu, "relu_": _relu, "tanh": FUNCTIONS[torch.tanh], "tanh_": FUNCTIONS[torch.tanh], "add": _add,
    "sub": _subtract, "mul": _multiply, "div": _divide, "neg": _negative, "contiguous": _same, "add_": _add,
    "sub_": _subtract, "mul_": _multiply, "div_": _divide, "neg_": _negative,
}

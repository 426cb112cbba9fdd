"""From a torch module to a function: torch.fx follows `forward`, whose layers and operations become calls one by one.

What is traced is the network in eval mode: dropout is left out, batch normalisation uses its running statistics. The
weights are copied; a network that is trained further has to be traced again.
"""
import copy
import inspect
import math

import torch
from torch import fx
from torch import nn as tnn

from znn import nn
from znn.graph.errors import GraphError, UnsupportedLayer
from znn.graph.ir import Function, Let, Var, call, check, constant, let
from znn.graph.layers import FUNCTIONS, IN_PLACE, METHODS, converter
from znn.graph.operators import VIEWS
from znn.graph.types import volume


def trace(net, channels=None):
    """The function that a network computes.

    Parameters
    ----------
    net : torch.nn.Module
        Takes one tensor (N, channels, Z, Y, X). Left as it is.
    channels : int, optional
        Of the input; unless given, `in_channels` of the network or of its first layer that has any.

    Returns
    -------
    Function
        Of one volume, (channels, z, y, x), named after the network's class.

    Raises
    ------
    UnsupportedLayer
        If the network does what there is no operator for; the message names the layer.
    IllTyped
        If a layer does not fit the one before it.
    """
    net = copy.deepcopy(net).cpu().eval()
    name = type(net).__name__
    net = net if converter(net) is None else tnn.Sequential(net)
    nodes = _Tracer().nodes_of(net, name)
    x = Var("x", volume(_dtype(net, name), channels or _channels(net, name)))
    trail = Trail(net, x)
    for node in nodes:
        trail.follow(node)
    result = trail.values[nodes[-1]]
    if not isinstance(result, Var):
        raise UnsupportedLayer(f"{name}.forward: expected to return one tensor, found {type(result).__name__}: return "
                               "the volume of logits alone")
    return check(Function(name.lower(), (x,), tuple(trail.lets), result, trail.weights))


def _dtype(net, name):
    """Element type of a network's parameters, as types name it."""
    found = next((p.dtype for p in net.parameters()), torch.float32)
    if found not in DTYPES:
        raise GraphError(f"{name}: expected weights of {' or '.join(map(str, DTYPES))}, found {found}: convert them, "
                         "as by net.float()")
    return DTYPES[found]


def _channels(net, name):
    found = (getattr(m, "in_channels", None) or getattr(m, "num_features", None) for m in net.modules())
    channels = next((c for c in found if isinstance(c, int)), None)
    if channels is None:
        raise GraphError(f"{name}: expected a layer that says how many channels it takes, found none: "
                         "give channels=")
    return channels


DTYPES = {torch.float32: "f32", torch.float64: "f64"}
KNOWN = ("the layers of znn.nn, a valid Conv3d, MaxPool3d of stride 1, BatchNorm3d, ReLU, Tanh, Dropout, a sum, a "
         "product with a number, cat, a slice")


class _Tensor(fx.Proxy):
    """A tensor that is followed. For torch.fx ``x += y`` is ``x = x + y``, after which other names have the old x."""


def _in_place(target):
    return lambda self, other: self.tracer.create_proxy("call_function", target, (self, other), {})


for _target in IN_PLACE:
    setattr(_Tensor, f"__{_target.__name__}__", _in_place(_target))


class _Tracer(fx.Tracer):
    """Follows `forward` down to the layers that have a converter, and to torch's own, which a message can name."""

    def __init__(self):
        super().__init__(autowrap_modules=(math, nn, nn.modules))

    def nodes_of(self, net, name):
        """What `forward` does, in order; the last node is the output."""
        what = f"{name}.forward"
        takes = [p for p in inspect.signature(net.forward).parameters.values() if p.default is p.empty]
        if len(takes) != 1 or takes[0].kind is not takes[0].POSITIONAL_OR_KEYWORD:
            raise UnsupportedLayer(f"{what}: expected to take one tensor, found ({', '.join(map(str, takes))}): join "
                                   "the inputs as channels of one")
        try:
            return list(self.trace(net).nodes)
        except (fx.proxy.TraceError, TypeError, NotImplementedError, RuntimeError, AttributeError) as error:
            raise UnsupportedLayer(f"{what}: expected steps that depend on no value and no shape of a tensor, found: "
                                   f"{error}; rewrite it with layers and sums, or call the network itself") from error

    def proxy(self, node):
        return _Tensor(node, self)

    def is_leaf_module(self, module, name):
        return converter(module) is not None or super().is_leaf_module(module, name)

    def create_arg(self, a):
        if isinstance(a, tnn.Module):  # a layer given to another layer, as one whose convolution is added
            return self.create_node("get_attr", self.path_of_module(a), (), {})
        return super().create_arg(a)


class Trail:
    """A function in the making.

    Attributes
    ----------
    layer : str
        Name of the layer or operation that is being converted.
    names : dict of torch.nn.Module to str
    values : dict of torch.fx.Node to object
        What each node has become: a `Var`, a layer, a tensor of weights, or nothing in particular.
    lets : list of Let
    weights : dict of str to ndarray
    """

    def __init__(self, net, x):
        self.net, self.x, self.names = net, x, {m: name for name, m in net.named_modules()}
        self.layer, self.values, self.lets, self.weights, self._taken = None, {}, [], {}, {x.name}

    def follow(self, node):
        """Take one step."""
        if node.op == "placeholder":
            value = self.x
        elif node.op == "get_attr":
            value = _attribute(self.net, node.target)
        elif node.op == "output":
            value = self._operands(node.args[0])
        else:
            value = self._convert(node)
        self.values[node] = value

    def emit(self, op, *operands, **named):
        """A call as the next step of the layer; the variable it is bound to."""
        self.lets.append(let(self._free(f"{self.layer}.{op}"), call(op, *operands, **named)))
        return self.lets[-1].var

    def weight(self, what, tensor, of=None):
        """A constant of the layer (or of the one named), from a tensor."""
        array = tensor.detach().contiguous().numpy().copy()
        return constant(self.weights, f"{of or self.layer}.{what}", array)

    def numbers(self, what, value, x):
        """A constant of a number for every channel of x, from one number or a tensor of as many."""
        dtype = next(torch_dtype for torch_dtype, name in DTYPES.items() if name == x.type.dtype)
        return self.weight(what, torch.as_tensor(value, dtype=dtype).reshape(-1).expand(x.type.shape[0]))

    def _convert(self, node):
        if node.op == "call_module":
            layer, self.layer = self.net.get_submodule(node.target), node.target
            convert, kind = converter(layer), type(layer).__name__
            arguments = (layer,)
        else:
            table = METHODS if node.op == "call_method" else FUNCTIONS
            convert, kind, arguments = table.get(node.target), getattr(node.target, "__name__", node.target), ()
            self.layer = node.name
        if convert is None:
            raise UnsupportedLayer(f"{self.layer} ({kind}): expected one of {KNOWN}, found "
                                   "another: replace it, or run the network as it is, without compiling")
        before = len(self.lets)
        operands, named = self._operands(node.args), self._operands(node.kwargs)
        try:
            inspect.signature(convert).bind(self, *arguments, *operands, **named)
        except TypeError as error:
            raise UnsupportedLayer(f"{self.layer} ({kind}): expected the usual arguments, found others ({error}): "
                                   "leave them out, or use a layer") from error
        value = convert(self, *arguments, *operands, **named)
        if len(self.lets) > before and value == self.lets[-1].var:  # the last step goes by the layer's name
            last = self.lets.pop()
            value = Var(self._free(self.layer), last.var.type)
            self.lets.append(Let(value, last.call))
        in_place = named.get("inplace") or any(getattr(layer, "inplace", False) for layer in arguments)
        if in_place or node.target in IN_PLACE or str(node.target).endswith("_"):
            self._overwrite(operands[0], value, kind)
        return value

    def _overwrite(self, old, new, kind):
        """Let whatever was the tensor `old` be `new` from now on, since a step has changed it in place."""
        views = [each for each in self.lets if each.call.op in VIEWS and old in (each.var, each.call["x"])]
        if views and old != new:
            raise UnsupportedLayer(f"{self.layer} ({kind}): expected a tensor of its own to change in place, found a "
                                   "part of another, or one of which a part is used: leave out inplace")
        self.values = {node: new if value == old else value for node, value in self.values.items()}

    def _operands(self, argument):
        return fx.node.map_arg(argument, self.values.__getitem__)

    def _free(self, name):
        number, stem = 1, name
        while name in self._taken:
            number += 1
            name = f"{stem}:{number}"
        self._taken.add(name)
        return name


def _attribute(net, path):
    for part in path.split("."):
        net = getattr(net, part)
    return net

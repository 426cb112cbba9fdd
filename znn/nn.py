"""What a network's author touches: dense (valid, stride-1) layers on volumes, as torch modules.

Every layer takes and returns ``(N, C, Z, Y, X)`` float32 tensors.  Convolution is torch's cross-correlation with
torch's weight layout ``(out, in, z, y, x)``, so a ``state_dict`` moves between the two engines unchanged.
Pooling never strides: `MaxFilter3d` slides its window over every voxel, and what follows is dilated instead
("filter rarefaction"), which gives a dense output with the weights of the strided network.
"""
import copy
import functools
import math
import operator
from collections.abc import Iterable
from numbers import Integral, Real

import torch
from torch import nn
from torch.nn import functional as F

from znn.runtime import arena
from znn.runtime import conv as conv_kernels
from znn.runtime import dropout as dropout_kernels
from znn.runtime import pool as pool_kernels
from znn.runtime.arrays import check_activation
from znn.runtime.layer import PASSES, Layer

_engine = "znn"
ENGINES = ("znn", "torch")


def use_engine(name):
    """Choose what computes the layers from now on: ``"znn"`` (generated kernels) or ``"torch"`` (the reference).

    Raises
    ------
    ValueError
        If `name` is neither.
    """
    global _engine
    if name not in ENGINES:
        raise ValueError(f"engine {name!r} is unknown: choose one of {', '.join(ENGINES)}")
    _engine = name


def current_engine():
    """The name of what computes the layers now, "znn" or "torch"."""
    return _engine


def memory_at_most(limit):
    """A context in which the layers keep no idle memory that makes more than `limit` bytes of all they hold."""
    return arena.at_most(limit)


def triple(value):
    """An int or a (z, y, x) sequence as a tuple of three ints."""
    try:
        values = tuple(map(operator.index, value if isinstance(value, Iterable) else (value,) * 3))
    except TypeError:  # not whole numbers
        values = ()
    if len(values) != 3 or min(values) < 1:
        raise ValueError(f"expected a positive integer or three of them (z, y, x), found {value!r}")
    return values


def _ours(x):
    """Whether the generated kernels compute this tensor: they know dense CPU memory and two floating types."""
    return _engine == "znn" and x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)


class _First(torch.autograd.Function):
    """A gradient as it is, which depends on what follows it in a way that is not computed."""

    @staticmethod
    def forward(ctx, grad, *of):
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError('znn computes first derivatives of convolutions and max filters, found a derivative of one: '
                           'let PyTorch compute the network, by znn.use_engine("torch") before its forward pass, or '
                           'engine=torch for a command')


def _once(backward):
    """A backward pass whose own gradient is refused, where torch's `once_differentiable` may take it for zero."""
    @functools.wraps(backward)
    def first(ctx, grad):
        with torch.no_grad():
            found = backward(ctx, grad)
        if not torch.is_grad_enabled():  # as in any backward pass but one with create_graph=True
            return found
        of = [t for t in (grad, *ctx.saved_tensors) if t.requires_grad]
        return tuple(g if g is None else _First.apply(g, *of) for g in found)

    return first


class _Convolution(torch.autograd.Function):
    """The sum of convolutions, bias and activation in one pass forward; the activation's gradient is part of backward.

    Arguments after the activation are x, weight, dilation of each convolution in turn.
    """

    @staticmethod
    def forward(ctx, bias, activation, *terms):
        inputs, dilations = [], terms[2::3]
        bias = None if bias is None else bias.contiguous()
        for x, weight in zip(terms[::3], terms[1::3]):
            inputs += [x.contiguous(), weight.contiguous()]
        y = None
        for i, (x, weight, dilation) in enumerate(zip(inputs[::2], inputs[1::2], dilations)):
            b = bias.numpy() if bias is not None and i == 0 else None
            act = activation if i == len(dilations) - 1 else None
            y = conv_kernels.forward(x.numpy(), weight.numpy(), b, dilation, act, y)
        y = torch.from_numpy(y)
        ctx.save_for_backward(*inputs, *([] if activation is None else [y]))
        ctx.dilations, ctx.activation = dilations, activation
        return y

    @staticmethod
    @_once
    def backward(ctx, grad):
        saved = [t.numpy() for t in ctx.saved_tensors]
        y = saved.pop() if ctx.activation is not None else None
        weights = saved[1::2]
        reach = max(d[2] * (w.shape[4] - 1) for d, w in zip(ctx.dilations, weights))
        grad = grad.contiguous().numpy()
        g, left, db = conv_kernels.prepared(grad, y, ctx.activation, reach)
        found = [torch.from_numpy(db) if ctx.needs_input_grad[0] else None, None]
        for i, (x, w, d) in enumerate(zip(saved[::2], weights, ctx.dilations)):
            g_of = g, left, grad.shape, d
            data, weight = ctx.needs_input_grad[2 + 3 * i:4 + 3 * i]
            found += [torch.from_numpy(conv_kernels.backward_data(x.shape, w, *g_of)) if data else None,
                      torch.from_numpy(conv_kernels.backward_weights(x, w.shape, *g_of)) if weight else None, None]
        return tuple(found)


class _Maximum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, window, dilation):
        y, places = pool_kernels.max_filter_with_places(x.contiguous().numpy(), window, dilation)
        ctx.save_for_backward(torch.from_numpy(places))
        ctx.shape, ctx.window, ctx.dilation = tuple(x.shape), window, dilation
        return torch.from_numpy(y)

    @staticmethod
    @_once
    def backward(ctx, grad):
        places, = ctx.saved_tensors
        dx = pool_kernels.max_filter_gradient(ctx.shape, places.numpy(), grad.contiguous().numpy(), ctx.window,
                                              ctx.dilation)
        return torch.from_numpy(dx), None, None


class _Dropout(torch.autograd.Function):
    """Backward is forward again, with the same mask: only its seed is kept."""

    @staticmethod
    def forward(ctx, x, seed, p):
        ctx.seed, ctx.p = seed, p
        return torch.from_numpy(dropout_kernels.dropout(x.contiguous().numpy(), seed, p))

    @staticmethod
    def backward(ctx, grad):
        return _Dropout.apply(grad, ctx.seed, ctx.p), None, None


def _check(what, x, channels, kernel, dilation):
    """Raise ValueError when a layer cannot take this input."""
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"{what} expects a torch.Tensor (N, {channels or 'C'}, Z, Y, X), found {type(x).__name__}: "
                         "convert an array by torch.from_numpy")
    if x.dim() != 5 or (channels and x.shape[1] != channels):
        raise ValueError(f"{what} expects (N, {channels or 'C'}, Z, Y, X), found {tuple(x.shape)}")
    need = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation))
    if x.shape[0] == 0:
        raise ValueError(f"{what} expects at least one volume, found none: {tuple(x.shape)}")
    if any(n < m for n, m in zip(x.shape[2:], need)):
        raise ValueError(f"{what} needs at least {need} voxels (z, y, x), found {tuple(x.shape[2:])}: "
                         "give the network an input no smaller than its field of view")


def _check_weight(weight):
    """Raise ValueError for what are no weights of a convolution."""
    if not isinstance(weight, torch.Tensor) or weight.dim() != 5 or not weight.numel():
        found = tuple(weight.shape) if isinstance(weight, torch.Tensor) else type(weight).__name__
        raise ValueError(f"convolution expects weight as a torch.Tensor (out, in, kz, ky, kx), none of them 0, found "
                         f"{found}: a 2D kernel has kz = 1, as by weight.unsqueeze(2)")


def _check_parameters(x, weight, bias):
    """Raise ValueError when weights or bias are not of x's kind: kernels trust addresses."""
    if not x.is_floating_point():
        raise ValueError(f"convolution expects an input of a floating type, found {x.dtype}: convert it by x.float()")
    for name, t in (("weight", weight), ("bias", bias)):
        if t is not None and (t.dtype, t.device) != (x.dtype, x.device):
            raise ValueError(f"convolution expects {name} like its input, {x.dtype} on {x.device}, found {t.dtype} on "
                             f"{t.device}: convert one of them, as by net.to(x)")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"convolution expects a bias for each of {weight.shape[0]} channels, "
                         f"found {tuple(bias.shape)}")


def conv3d(x, weight, bias=None, dilation=(1, 1, 1), activation=None, plus=()):
    """Valid convolution, bias and activation as one operation; the functional form of `Conv3d`.

    Parameters
    ----------
    x : Tensor, (N, in, Z, Y, X)
    weight : Tensor, (out, in, kz, ky, kx)
    bias : Tensor, (out,), optional
    dilation : (int, int, int)
    activation : None, "relu", or (a, b) for a tanh(b s)
    plus : sequence of (x, weight, dilation)
        Further convolutions to the same shape, added before the activation.

    Returns
    -------
    Tensor, (N, out, Z - dilation_z (kz - 1), Y - ..., X - ...)

    Raises
    ------
    ValueError
        When channels, types or devices do not fit, dilation or activation are not as above, an input is smaller than
        the kernel reaches, or the convolutions that are added have different shapes.
    """
    if any(len(term) != 3 for term in plus):
        raise ValueError(f"plus expects triples (x, weight, dilation), found {[len(term) for term in plus]} "
                         "values: give a dilation of 1 for none")
    terms = [(x, weight, triple(dilation)), *((x2, w2, triple(d2)) for x2, w2, d2 in plus)]
    check_activation(activation)
    for number, (x1, w1, d1) in enumerate(terms):
        _check_weight(w1)
        _check("convolution", x1, w1.shape[1], w1.shape[2:], d1)
        _check_parameters(x1, w1, None if number else bias)
    _check_sum(terms)
    if _ours(x):
        return _Convolution.apply(bias, activation, *(a for term in terms for a in term))
    y = F.conv3d(x, weight, bias, dilation=terms[0][2])
    for x2, w2, d2 in terms[1:]:
        y = y + F.conv3d(x2, w2, dilation=d2)
    if activation is None:
        return y
    return F.relu(y) if activation == "relu" else activation[0] * torch.tanh(activation[1] * y)


def _check_sum(terms):
    """Raise ValueError when convolutions that are added up have different shapes or kinds."""
    shapes = [(x.shape[0], w.shape[0], *(n - d * (k - 1) for n, d, k in zip(x.shape[2:], dilation, w.shape[2:])))
              for x, w, dilation in terms]
    kinds = [(x.dtype, x.device) for x, _, _ in terms]
    for shape, kind in zip(shapes[1:], kinds[1:]):
        if (shape, kind) != (shapes[0], kinds[0]):
            raise ValueError(f"convolutions that are added must agree: expected {shapes[0]} {kinds[0]}, "
                             f"found {shape} {kind}")


def max_filter3d(x, window, dilation=(1, 1, 1)):
    """Sliding maximum over a dilated window; the functional form of `MaxFilter3d`.

    Parameters
    ----------
    x : Tensor, (N, C, Z, Y, X)
    window, dilation : int or (int, int, int)

    Returns
    -------
    Tensor, (N, C, Z - dilation_z (window_z - 1), Y - ..., X - ...)

    Raises
    ------
    ValueError
        If an argument is not as above, or x is smaller than the window reaches.
    """
    window, dilation = triple(window), triple(dilation)
    _check("max filter", x, None, window, dilation)
    if not _ours(x):
        return F.max_pool3d(x, window, stride=1, dilation=dilation)
    if x.requires_grad and torch.is_grad_enabled():
        return _Maximum.apply(x, window, dilation)
    return torch.from_numpy(pool_kernels.max_filter(x.detach().contiguous().numpy(), window, dilation))


def dropout(x, p=0.5, training=True):
    """Zero each element independently with probability p, scale the others by 1 / (1 - p); the form of `Dropout`.

    The mask follows from a seed that is drawn from torch's default generator: `torch.manual_seed`, or a generator whose
    state is restored, gives it again bit for bit, whatever the number of threads.

    Parameters
    ----------
    x : Tensor
        Of any shape.
    p : float
        In [0, 1].
    training : bool
        If not, x is returned as it is, as for p = 0.

    Raises
    ------
    ValueError
        If `p` is not a probability.
    """
    _check_probability(p)
    if not training or p == 0:
        return x
    if not _ours(x):
        return F.dropout(x, p)
    return _Dropout.apply(x, torch.randint(2**63 - 1, ()).item(), p)


def _check_probability(p):
    """Raise ValueError for what is no probability."""
    if not isinstance(p, Real) or not 0 <= p <= 1:
        raise ValueError(f"dropout expects a probability between 0 and 1, found {p!r}")


class ReLU(nn.ReLU):
    """max(x, 0)."""

    kind = "relu"


class Tanh(nn.Module):
    """a * tanh(b * x), the scaled hyperbolic tangent of LeCun et al., "Efficient BackProp" (1998)."""

    def __init__(self, a=1.7159, b=0.6666):
        super().__init__()
        check_activation((a, b))
        self.a, self.b = a, b

    def forward(self, x):
        return self.a * torch.tanh(self.b * x)

    @property
    def kind(self):
        """How the functional form names it."""
        return self.a, self.b

    def extra_repr(self):
        return f"a={self.a}, b={self.b}"


class Conv3d(nn.Module):
    """Valid 3D convolution, kernel and dilation (z, y, x), with its activation.

    ``y[co, p] = activation(bias[co] + sum_{ci, k} weight[co, ci, k] x[ci, p + dilation k])``

    Parameters
    ----------
    in_channels, out_channels : int
    kernel, dilation : int or (int, int, int)
    bias : bool
    activation : ReLU, Tanh or None
        Given here rather than as the next module, it costs no pass over memory.

    Raises
    ------
    ValueError
        If an argument is not as above.
    """

    def __init__(self, in_channels, out_channels, kernel, dilation=1, bias=True, activation=None):
        super().__init__()
        for name, value in (("in_channels", in_channels), ("out_channels", out_channels)):
            if not isinstance(value, Integral) or value < 1:
                raise ValueError(f"Conv3d expects {name} as a positive integer, found {value!r}")
        if not isinstance(bias, bool):
            raise ValueError(f"Conv3d expects bias as True or False, found {bias!r}: set its values afterwards, in "
                             "layer.bias")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel, self.dilation = triple(kernel), triple(dilation)
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, *self.kernel))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        if activation is not None and not isinstance(activation, (ReLU, Tanh)):
            raise ValueError("Conv3d computes znn.nn.ReLU() and znn.nn.Tanh() itself, found "
                             f"{activation!r}: give one of these, or make another the next module")
        self.activation = activation
        initialise(self, "msra")

    def forward(self, x, *others):
        """The layer's output; `others` are (layer, input) whose convolutions are added before this one's activation."""
        bias = self.bias
        if not all(isinstance(term, tuple) and len(term) == 2 and isinstance(term[0], Conv3d) for term in others):
            raise ValueError("a convolution adds others that are given as (layer, input), each layer a znn.nn.Conv3d, "
                             f"found {', '.join(type(term).__name__ for term in others)}")
        for layer, _ in others:
            if layer.activation is not None:
                raise ValueError("a convolution that is added to another has no activation of its own")
            if layer.bias is not None:
                bias = layer.bias if bias is None else bias + layer.bias
        return conv3d(x, self.weight, bias, self.dilation, self.activation and self.activation.kind,
                      [(x2, layer.weight, layer.dilation) for layer, x2 in others])

    def extra_repr(self):
        return f"{self.in_channels}, {self.out_channels}, kernel={self.kernel}, dilation={self.dilation}"


def layers(net, shape):
    """The convolutions that a network makes of an input of `shape` (N, C, Z, Y, X), by a dry run without values.

    Returns
    -------
    list of znn.runtime.layer.Layer
        In the order in which they are computed; those that are added up follow each other.
    """
    net = copy.deepcopy(net).to("meta").eval()
    named, found = {layer: name for name, layer in net.named_modules() if isinstance(layer, Conv3d)}, []

    def note(layer, args):
        terms = [(layer, args[0]), *args[1:]]
        reach = max(m.dilation[2] * (m.kernel[2] - 1) for m, _ in terms)
        bias = any(m.bias is not None for m, _ in terms)
        for i, (m, x) in enumerate(terms):
            kind = layer.activation.kind if layer.activation and i == len(terms) - 1 else None
            passes = [p for p in PASSES if p != "data" or x.requires_grad]
            found.append(Layer(tuple(x.shape), tuple(m.weight.shape), m.dilation, bias and i == 0, kind, i > 0, reach,
                               tuple(passes), named[m]))

    for layer in named:
        layer.register_forward_pre_hook(note)
    net.requires_grad_()(torch.empty(shape, device="meta"))
    return found


class MaxFilter3d(nn.Module):
    """Maximum over a sliding window (z, y, x) whose taps are `dilation` apart; ties keep the earlier voxel."""

    def __init__(self, window, dilation=1):
        super().__init__()
        self.window, self.dilation = triple(window), triple(dilation)

    def forward(self, x):
        return max_filter3d(x, self.window, self.dilation)

    def extra_repr(self):
        return f"window={self.window}, dilation={self.dilation}"


class Dropout(nn.Dropout):
    """Drop each voxel of each map independently with probability p; kept values are scaled by 1 / (1 - p)."""

    def __init__(self, p=0.5, inplace=False):
        _check_probability(p)
        super().__init__(p, inplace)

    def forward(self, x):
        return super().forward(x) if self.inplace else dropout(x, self.p, self.training)


def initialise(conv, kind, scale=None):
    """Fill a `Conv3d`'s weights in place, its bias with zero.

    Parameters
    ----------
    conv : Conv3d
    kind : str
        "msra": N(0, sqrt(2 / fan_in)), He et al. 2015; "xavier": U(+-sqrt(6 / (fan_in + fan_out))), Glorot and
        Bengio 2010; "standard": U(+-1 / sqrt(fan_in)); "uniform": U(+-scale), scale 0.05 unless given;
        "gaussian": N(0, scale), scale 0.01 unless given; "constant": scale, 0 unless given.

    Raises
    ------
    ValueError
        If `conv` is another module, or `kind` is none of these.
    """
    if not isinstance(conv, Conv3d):
        raise ValueError(f"initialise fills a znn.nn.Conv3d, found {type(conv).__name__}: call it for each of "
                         "a network's")
    volume = math.prod(conv.kernel)
    fan_in, fan_out = conv.in_channels * volume, conv.out_channels * volume
    w = conv.weight
    fill = {
        "msra": lambda: nn.init.normal_(w, 0.0, math.sqrt(2 / fan_in)),
        "xavier": lambda: nn.init.uniform_(w, -math.sqrt(6 / (fan_in + fan_out)), math.sqrt(6 / (fan_in + fan_out))),
        "standard": lambda: nn.init.uniform_(w, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in)),
        "uniform": lambda: nn.init.uniform_(w, -(scale or 0.05), scale or 0.05),
        "gaussian": lambda: nn.init.normal_(w, 0.0, scale or 0.01),
        "constant": lambda: nn.init.constant_(w, scale or 0.0),
    }
    if kind not in fill:
        raise ValueError(f"initialisation {kind!r} is unknown: choose one of {', '.join(fill)}")
    fill[kind]()
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)


def _shrink(net, in_channels):
    """Voxels (z, y, x) that a network's output is smaller than its input, found by shapes alone (meta device)."""
    probe = 1024
    ghost = copy.deepcopy(net).to("meta").eval()
    x = torch.empty(1, in_channels, probe, probe, probe, device="meta")
    return tuple(probe - n for n in ghost(x).shape[2:])


def field_of_view(net, in_channels=1):
    """Input voxels (z, y, x) that one output voxel sees, for any network of dense layers.

    Computed by sending a shape through the network, so branches, sums and hand-written `forward`s count as they are.
    """
    return tuple(s + 1 for s in _shrink(net, in_channels))


def valid_shape(net, shape, in_channels=1):
    """Output extent (z, y, x) for an input extent; raises ValueError when the input is below the field of view."""
    fov = field_of_view(net, in_channels)
    out = tuple(n - f + 1 for n, f in zip(shape, fov))
    if min(out) < 1:
        raise ValueError(f"input of {tuple(shape)} voxels (z, y, x) is smaller than the field of view {fov}")
    return out

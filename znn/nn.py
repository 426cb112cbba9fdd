"""What a network's author touches: dense (valid, stride-1) layers on volumes, as torch modules.

Every layer takes and returns ``(N, C, Z, Y, X)`` float32 tensors.  Convolution is torch's cross-correlation with
torch's weight layout ``(out, in, z, y, x)``, so a ``state_dict`` moves between the two engines unchanged.
Pooling never strides: `MaxFilter3d` slides its window over every voxel, and what follows is dilated instead
("filter rarefaction"), which gives a dense output with the weights of the strided network.
"""
import copy
import math

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from znn.runtime import conv as conv_kernels
from znn.runtime import pool as pool_kernels

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


def triple(value):
    """An int or a (z, y, x) sequence as a tuple of three ints."""
    values = (value,) * 3 if isinstance(value, int) else tuple(int(v) for v in value)
    if len(values) != 3 or min(values) < 1:
        raise ValueError(f"expected a positive integer or three of them (z, y, x), found {value!r}")
    return values


def _ours(x):
    """Whether the generated kernels compute this tensor: they know dense CPU memory and two floating types."""
    return _engine == "znn" and x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)


class _Convolution(torch.autograd.Function):
    """Convolution, bias and activation in one pass forward; the activation's gradient is part of the backward pass."""

    @staticmethod
    def forward(ctx, x, weight, bias, dilation, activation):
        x, weight = x.contiguous(), weight.contiguous()
        y = torch.from_numpy(conv_kernels.forward(
            x.numpy(), weight.numpy(), None if bias is None else bias.numpy(), dilation, activation))
        ctx.save_for_backward(x, weight, *([] if activation is None else [y]))
        ctx.dilation, ctx.activation = dilation, activation
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, weight, *y = (t.numpy() for t in ctx.saved_tensors)
        out = conv_kernels.backward(x, weight, y[0] if y else None, grad.contiguous().numpy(), ctx.dilation,
                                    ctx.activation, ctx.needs_input_grad[:3])
        return *(None if g is None else torch.from_numpy(g) for g in out), None, None


class _Maximum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, window, dilation):
        x = x.contiguous()
        y = torch.from_numpy(pool_kernels.max_filter(x.numpy(), window, dilation))
        ctx.save_for_backward(x, y)
        ctx.window, ctx.dilation = window, dilation
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, y = (t.numpy() for t in ctx.saved_tensors)
        dx = pool_kernels.max_filter_gradient(x, y, grad.contiguous().numpy(), ctx.window, ctx.dilation)
        return torch.from_numpy(dx), None, None


def _check(what, x, channels, kernel, dilation):
    """Raise ValueError when a layer cannot take this input."""
    if x.dim() != 5 or (channels and x.shape[1] != channels):
        raise ValueError(f"{what} expects (N, {channels or 'C'}, Z, Y, X), found {tuple(x.shape)}")
    need = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation))
    if x.shape[0] == 0:
        raise ValueError(f"{what} expects at least one volume, found none: {tuple(x.shape)}")
    if any(n < m for n, m in zip(x.shape[2:], need)):
        raise ValueError(f"{what} needs at least {need} voxels (z, y, x), found {tuple(x.shape[2:])}: "
                         "give the network an input no smaller than its field of view")


def _check_parameters(x, weight, bias):
    """Raise ValueError when weights or bias are not of x's kind: kernels trust addresses."""
    for name, t in (("weight", weight), ("bias", bias)):
        if t is not None and (t.dtype, t.device) != (x.dtype, x.device):
            raise ValueError(f"convolution expects {name} like its input, {x.dtype} on {x.device}, found {t.dtype} on "
                             f"{t.device}: convert one of them, as by net.to(x)")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"convolution expects a bias for each of {weight.shape[0]} channels, "
                         f"found {tuple(bias.shape)}")


def conv3d(x, weight, bias=None, dilation=(1, 1, 1), activation=None):
    """Valid convolution, bias and activation as one operation; the functional form of `Conv3d`.

    Parameters
    ----------
    x : Tensor, (N, in, Z, Y, X)
    weight : Tensor, (out, in, kz, ky, kx)
    bias : Tensor, (out,), optional
    dilation : (int, int, int)
    activation : None, "relu", or (a, b) for a tanh(b s)

    Returns
    -------
    Tensor, (N, out, Z - dilation_z (kz - 1), Y - ..., X - ...)
    """
    _check("convolution", x, weight.shape[1], weight.shape[2:], dilation)
    _check_parameters(x, weight, bias)
    if _ours(x):
        return _Convolution.apply(x, weight, bias, tuple(dilation), activation)
    y = F.conv3d(x, weight, bias, dilation=tuple(dilation))
    if activation is None:
        return y
    return F.relu(y) if activation == "relu" else activation[0] * torch.tanh(activation[1] * y)


def max_filter3d(x, window, dilation=(1, 1, 1)):
    """Sliding maximum over a dilated window; the functional form of `MaxFilter3d`."""
    _check("max filter", x, None, window, dilation)
    if _ours(x):
        return _Maximum.apply(x, tuple(window), tuple(dilation))
    return F.max_pool3d(x, tuple(window), stride=1, dilation=tuple(dilation))


class ReLU(nn.ReLU):
    """max(x, 0)."""

    kind = "relu"


class Tanh(nn.Module):
    """a * tanh(b * x), the scaled hyperbolic tangent of LeCun et al., "Efficient BackProp" (1998)."""

    def __init__(self, a=1.7159, b=0.6666):
        super().__init__()
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
    """

    def __init__(self, in_channels, out_channels, kernel, dilation=1, bias=True, activation=None):
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel, self.dilation = triple(kernel), triple(dilation)
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, *self.kernel))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        self.activation = activation
        initialise(self, "msra")

    def forward(self, x):
        return conv3d(x, self.weight, self.bias, self.dilation, self.activation and self.activation.kind)

    def extra_repr(self):
        return f"{self.in_channels}, {self.out_channels}, kernel={self.kernel}, dilation={self.dilation}"


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


def initialise(conv, kind, scale=None):
    """Fill a `Conv3d`'s weights in place, its bias with zero.

    Parameters
    ----------
    conv : Conv3d
    kind : str
        "msra": N(0, sqrt(2 / fan_in)), He et al. 2015; "xavier": U(+-sqrt(6 / (fan_in + fan_out))), Glorot and
        Bengio 2010; "standard": U(+-1 / sqrt(fan_in)); "uniform": U(+-scale), scale 0.05 unless given;
        "gaussian": N(0, scale), scale 0.01 unless given; "constant": scale, 0 unless given.
    """
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

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
from torch.nn import functional as F

_engine = "torch"
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


def triple(value):
    """An int or a (z, y, x) sequence as a tuple of three ints."""
    values = (value,) * 3 if isinstance(value, int) else tuple(int(v) for v in value)
    if len(values) != 3 or min(values) < 1:
        raise ValueError(f"expected a positive integer or three of them (z, y, x), found {value!r}")
    return values


class Conv3d(nn.Module):
    """Valid 3D convolution: kernel and dilation are (z, y, x).

    ``y[co, p] = bias[co] + sum_{ci, k} weight[co, ci, k] x[ci, p + dilation * k]``
    """

    def __init__(self, in_channels, out_channels, kernel, dilation=1, bias=True):
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel, self.dilation = triple(kernel), triple(dilation)
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, *self.kernel))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        initialise(self, "msra")

    def forward(self, x):
        return F.conv3d(x, self.weight, self.bias, dilation=self.dilation)

    def extra_repr(self):
        return f"{self.in_channels}, {self.out_channels}, kernel={self.kernel}, dilation={self.dilation}"


class MaxFilter3d(nn.Module):
    """Maximum over a sliding window (z, y, x) whose taps are `dilation` apart; ties keep the earlier voxel."""

    def __init__(self, window, dilation=1):
        super().__init__()
        self.window, self.dilation = triple(window), triple(dilation)

    def forward(self, x):
        return F.max_pool3d(x, self.window, stride=1, dilation=self.dilation)

    def extra_repr(self):
        return f"window={self.window}, dilation={self.dilation}"


class ReLU(nn.ReLU):
    """max(x, 0)."""


class Tanh(nn.Module):
    """a * tanh(b * x), the scaled hyperbolic tangent of LeCun et al., "Efficient BackProp" (1998)."""

    def __init__(self, a=1.7159, b=0.6666):
        super().__init__()
        self.a, self.b = a, b

    def forward(self, x):
        return self.a * torch.tanh(self.b * x)

    def extra_repr(self):
        return f"a={self.a}, b={self.b}"


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

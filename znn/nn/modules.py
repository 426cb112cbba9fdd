"""Layers as modules, and how their weights begin."""
import math
from numbers import Integral

import torch
from torch import nn

from znn.nn.checks import check_probability, triple
from znn.nn.functional import conv3d, dropout, max_filter3d
from znn.runtime.arrays import check_activation


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
        check_probability(p)
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

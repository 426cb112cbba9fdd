"""What a layer takes: arguments are checked before kernels get their addresses, which they trust."""
import operator
from collections.abc import Iterable
from numbers import Real

import torch


def triple(value):
    """An int or a (z, y, x) sequence as a tuple of three ints."""
    try:
        values = tuple(map(operator.index, value if isinstance(value, Iterable) else (value,) * 3))
    except TypeError:  # not whole numbers
        values = ()
    if len(values) != 3 or min(values) < 1:
        raise ValueError(f"expected a positive integer or three of them (z, y, x), found {value!r}")
    return values


def check_input(what, x, channels, kernel, dilation):
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


def check_weight(weight):
    """Raise ValueError for what are no weights of a convolution."""
    if not isinstance(weight, torch.Tensor) or weight.dim() != 5 or not weight.numel():
        found = tuple(weight.shape) if isinstance(weight, torch.Tensor) else type(weight).__name__
        raise ValueError(f"convolution expects weight as a torch.Tensor (out, in, kz, ky, kx), none of them 0, found "
                         f"{found}: a 2D kernel has kz = 1, as by weight.unsqueeze(2)")


def check_parameters(x, weight, bias):
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


def check_sum(terms):
    """Raise ValueError when convolutions that are added up have different shapes or kinds."""
    shapes = [(x.shape[0], w.shape[0], *(n - d * (k - 1) for n, d, k in zip(x.shape[2:], dilation, w.shape[2:])))
              for x, w, dilation in terms]
    kinds = [(x.dtype, x.device) for x, _, _ in terms]
    for shape, kind in zip(shapes[1:], kinds[1:]):
        if (shape, kind) != (shapes[0], kinds[0]):
            raise ValueError(f"convolutions that are added must agree: expected {shapes[0]} {kinds[0]}, "
                             f"found {shape} {kind}")


def check_probability(p):
    """Raise ValueError for what is no probability."""
    if not isinstance(p, Real) or not 0 <= p <= 1:
        raise ValueError(f"dropout expects a probability between 0 and 1, found {p!r}")

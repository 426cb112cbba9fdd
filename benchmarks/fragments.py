"""A dense network of `models` as max-pool fragments: the form that other engines run fastest, in plain PyTorch or ours.

Where the dense form keeps every voxel and lets the taps of what follows move apart, a pooling of stride s here makes
s x s volumes of one, each with every s-th voxel, side by side in the batch (Zlateski et al., arXiv 1606.05688)::

    dense        max filter at every voxel            -> convolution, taps s apart
    fragments    max filter at every voxel, then split -> convolution, taps 1 apart -> ... -> put together again

Both compute the same numbers.  All fragments of a pooling must be of one size: outputs are multiples of all strides.
"""
import copy
import itertools

import torch
from torch import nn
from torch.nn import functional as F

from znn.nn import Conv3d, MaxFilter3d


class Plain(nn.Module):
    """A `znn.nn.Conv3d`, and what is added to it, with taps that are neighbours."""

    def __init__(self, conv, conv3d):
        super().__init__()
        self._conv3d = conv3d
        self.weight, self.bias, self.activation = conv.weight, conv.bias, conv.activation

    def forward(self, x, *others):
        y = self._conv3d(x, self.weight, self.bias)
        for layer, x2 in others:
            y = y + self._conv3d(x2, layer.weight, layer.bias)
        return y if self.activation is None else self.activation(y)


class Split(nn.Module):
    """A maximum filter, then the fragments of its stride, (y, x), in the batch."""

    def __init__(self, window, stride, max_filter):
        super().__init__()
        self.window, self.stride, self._max_filter = window, stride, max_filter

    def forward(self, x):
        y, (sy, sx) = self._max_filter(x, self.window), self.stride
        return torch.cat([y[..., i::sy, j::sx] for i, j in itertools.product(range(sy), range(sx))])


def _max_filter(x, window):
    return F.max_pool3d(x, window, stride=1)


class Fragments(nn.Module):
    """A `models.DenseNet` by fragments; input and output are those of the network.

    Parameters
    ----------
    net : models.DenseNet
    conv3d, max_filter : callable
        ``conv3d(x, weight, bias)`` and ``max_filter(x, window)``, which compute.
    """

    def __init__(self, net, conv3d=F.conv3d, max_filter=_max_filter):
        super().__init__()
        self.net, self.strides = copy.deepcopy(net), []
        layers = list(self.net.named_children())
        for number, (name, layer) in enumerate(layers):
            if isinstance(layer, MaxFilter3d):
                following = next(m for _, m in layers[number:] if isinstance(m, Conv3d))
                self.strides.append([b // a for a, b in zip(layer.dilation[1:], following.dilation[1:])])
                self.net.add_module(name, Split(layer.window, self.strides[-1], max_filter))
        for name, layer in layers:
            if isinstance(layer, Conv3d):
                self.net.add_module(name, Plain(layer, conv3d))

    def forward(self, x):
        y = self.net(x)
        for sy, sx in reversed(self.strides):
            n, c, z, h, w = y.shape
            y = y.reshape(sy, sx, n // (sy * sx), c, z, h, w).permute(2, 3, 4, 5, 0, 6, 1)
            y = y.reshape(n // (sy * sx), c, z, h * sy, w * sx)
        return y

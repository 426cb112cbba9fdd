"""Small networks and the plain way of running them, for comparison."""
import copy

import numpy as np
import torch

from znn.nn import Conv3d, MaxFilter3d, ReLU, field_of_view

RESOLUTION, PLACE = (40.0, 4.0, 3.5), (37.0, 911.0, 911.0)
SHAPE = (7, 61, 83)


def tiny(channels=1, first=(2, 3, 2), pool=(1, 2, 2), last=(2, 2, 3), dilation=(1, 2, 1), seed=0):
    """A dense network of `channels` inputs and two outputs with random weights."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(Conv3d(channels, 3, first, activation=ReLU()), MaxFilter3d(pool),
                               Conv3d(3, 2, last, dilation)).eval()


def margins(network, channels):
    """Context (low, high) along z, y, x as numpy wants it for padding."""
    fov = field_of_view(network, channels)
    return [((f - 1) // 2, f - 1 - (f - 1) // 2) for f in fov]


def whole(networks, image, dtype=np.float32):
    """The last map of a chain: every stage in one piece, the volume padded by numpy's own reflection."""
    maps = []
    for network in networks:
        sources = [image, *(2 * earlier - 1 for earlier in maps[-1:])]
        pads = margins(network, len(sources))
        x = np.stack([np.pad(s, pads, mode="reflect") for s in sources]).astype(dtype)
        x = torch.from_numpy(x)[None]
        with torch.no_grad():
            maps.append(torch.softmax(copy.deepcopy(network).to(x.dtype)(x), 1)[0, 1].numpy())
    return maps[-1]


def noise(shape=SHAPE, seed=0):
    """Standard normal grey values."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)

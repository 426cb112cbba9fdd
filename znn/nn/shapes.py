"""What a network does to shapes, whatever it is made of: found by sending a shape through it, without values."""
import copy

import torch

from znn.nn.modules import Conv3d
from znn.runtime.layer import PASSES, Layer


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

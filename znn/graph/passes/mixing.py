"""A convolution of one voxel, as the last one of a network, inside the convolution before it.

    conv3d(conv3d(x, w, bias, activation), v)  =  conv3d(x, w, bias, activation, mix=v)

What lies between, often the volume with the most channels of all, is then not written. A kernel can do it that has all
channels of a voxel at hand, as on a matrix unit, for which x is narrow; elsewhere the runtime makes two of the one.
"""
from znn.graph.ir import let
from znn.graph.passes.rewriting import rewrite
from znn.graph.types import TOGETHER

MOST = 4  # sums over channels that a kernel holds besides


def mix_channels(function):
    """With convolutions of one voxel that give few channels inside those of narrow numbers before them."""
    return rewrite(function, _absorb_mixing)


def _absorb_mixing(each, site):
    second = each.call
    first = site.once(second["x"], "conv3d") if second.op == "conv3d" else None
    if first is None or first["x"].type.dtype not in TOGETHER or first["onto"] is not None or first["mix"] is not None:
        return None
    w, plain = second["weight"], second["activation"] is None and second["onto"] is None and second["mix"] is None
    if not plain or w.type.shape[2:] != (1, 1, 1) or w.type.shape[0] > MOST or second["x"].type.dtype != "f32":
        return None
    return [let(each.var.name, first.changed(mix=w, mix_bias=second["bias"]))]

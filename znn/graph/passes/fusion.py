"""What follows a convolution becomes part of it: the runtime's kernels do it with the sum still in registers.

A rule for each thing that a kernel can do at the end of its sum. Pooling has none, since no kernel pools: one that does
gets an attribute of conv3d and a rule here that absorbs a max_filter.
"""
from znn.graph.ir import let
from znn.graph.passes.rewriting import rewrite


def fuse(function):
    """With bias, sum and activation inside the convolutions before them."""
    return rewrite(function, _absorb_bias, _absorb_sum, _absorb_activation)


def _absorb_bias(each, site):
    conv = site.once(each.call["x"], "conv3d") if each.call.op == "bias" else None
    if conv is None or conv["bias"] is not None or conv["activation"] is not None:
        return None
    return [let(each.var.name, conv.changed(bias=each.call["bias"]))]


def _absorb_sum(each, site):
    """The convolution is added to the other summand where that is, so nothing else may need that."""
    if each.call.op != "add":
        return None
    for one, other in ((each.call["y"], each.call["x"]), (each.call["x"], each.call["y"])):
        conv = site.once(one, "conv3d")
        if conv is not None and conv["onto"] is None and conv["activation"] is None and site.computed(other) and \
                site.used_once(other):
            return [let(each.var.name, conv.changed(onto=other))]
    return None


def _absorb_activation(each, site):
    conv = site.once(each.call["x"], "conv3d") if each.call.op in ("relu", "tanh") else None
    if conv is None or conv["activation"] is not None:
        return None
    kind = "relu" if each.call.op == "relu" else (each.call["a"], each.call["b"])
    return [let(each.var.name, conv.changed(activation=kind))]

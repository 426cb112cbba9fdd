"""The sum of two convolutions as one over the channels of both, and channels joined once where they are joined twice.

    conv3d(x, v) + conv3d(y, w) = conv3d(concat(x, y), [v w])        for kernels of one shape and dilation
    conv3d(x, v) + conv3d(x, w) = conv3d(x, v + w)

Joining costs nothing where x and y are computed: they are written next to each other from the first
(`znn.graph.memory`). Inputs of the function would have to be copied, and are not joined.
"""
import numpy as np

from znn.graph.ir import call, let
from znn.graph.passes.rewriting import bare, layer, rewrite


def join_sums(function):
    """With sums of like convolutions as one convolution."""
    return rewrite(function, _sum_of_convolutions, _concat_of_concat)


def _sum_of_convolutions(each, site):
    if each.call.op != "add" or each.call["x"] == each.call["y"]:
        return None
    one, two = site.once(each.call["x"], "conv3d"), site.once(each.call["y"], "conv3d")
    if one is None or two is None or not (bare(one) and bare(two)) or one["dilation"] != two["dilation"]:
        return None
    v, w = one["weight"], two["weight"]
    if v.type.shape[2:] != w.type.shape[2:]:
        return None
    name = f"{layer(each.var.name)}.weight"
    if one["x"] == two["x"]:
        return [let(each.var.name, one.changed(weight=site.constant(name, site.value(v) + site.value(w), v)))]
    if not (site.computed(one["x"]) and site.computed(two["x"])):
        return None
    joined = site.let(each.var.name, call("concat", one["x"], two["x"]))
    weight = site.constant(name, np.concatenate([site.value(v), site.value(w)], 1), v)
    return [joined, let(each.var.name, one.changed(x=joined.var, weight=weight))]


def _concat_of_concat(each, site):
    if each.call.op != "concat" or not any(site.once(a, "concat") for a in each.call.args):
        return None
    parts = [b for a in each.call.args for b in (getattr(site.once(a, "concat"), "args", None) or (a,))]
    return [let(each.var.name, call("concat", *parts))]

"""Scales and shifts of channels become part of the weights and biases around them.

Convolutions are valid: every tap of every output meets the input, so what is true of the formula is true everywhere,
and nothing is rounded but the new weights, once, from double precision::

    scale(conv3d(x, w), s)       = conv3d(x, s[o] w[o, i, k])
    conv3d(scale(x, s), w)       = conv3d(x, s[i] w[o, i, k])
    conv3d(bias(x, b), w)        = bias(conv3d(x, w), sum_{i, k} b[i] w[o, i, k])
    scale(add(x, y), s)          = add(scale(x, s), scale(y, s))                     where x and y are convolutions
    scale(bias(x, b), s)         = bias(scale(x, s), s b)
    add(bias(x, b), y)           = bias(add(x, y), b)
    bias(bias(x, a), b)          = bias(x, a + b);  scale likewise
"""
from znn.graph.ir import call, let
from znn.graph.passes.rewriting import bare, layer, rewrite


def fold_constants(function):
    """Without scales and shifts that weights can take over."""
    return rewrite(function, _scaled_result, _scaled_input, _shifted_input, _scale_of_shift, _scale_of_sum,
                   _sum_of_shift, _two_in_one)


def _scaled_result(each, site):
    conv = site.once(each.call["x"], "conv3d") if each.call.op == "scale" else None
    if conv is None or not bare(conv):
        return None
    w = conv["weight"]
    values = site.value(w) * site.value(each.call["by"], -1, 1, 1, 1, 1)
    return [let(each.var.name, conv.changed(weight=site.constant(w.name, values, w)))]


def _scaled_input(each, site):
    scale = site.made(each.call["x"], "scale") if each.call.op == "conv3d" else None
    if scale is None:
        return None
    w = each.call["weight"]
    weight = site.constant(w.name, site.value(w) * site.value(scale["by"], 1, -1, 1, 1, 1), w)
    return [let(each.var.name, each.call.changed(x=scale["x"], weight=weight))]


def _shifted_input(each, site):
    shift = site.made(each.call["x"], "bias") if each.call.op == "conv3d" else None
    if shift is None or each.call["onto"] is not None or each.call["activation"] is not None:
        return None
    w = each.call["weight"]
    values = site.value(each.call["bias"]) + (site.value(w).sum((2, 3, 4)) @ site.value(shift["bias"]))
    conv = site.let(each.var.name, each.call.changed(x=shift["x"], bias=None))
    return [conv, let(each.var.name, call("bias", conv.var, site.constant(f"{layer(each.var.name)}.bias", values, w)))]


def _scale_of_shift(each, site):
    shift = site.once(each.call["x"], "bias") if each.call.op == "scale" else None
    if shift is None:
        return None
    b = shift["bias"]
    scale = site.let(each.var.name, each.call.changed(x=shift["x"]))
    bias = site.constant(b.name, site.value(b) * site.value(each.call["by"]), b)
    return [scale, let(each.var.name, call("bias", scale.var, bias))]


def _scale_of_sum(each, site):
    if each.call.op != "scale" or not _sums_convolutions(each.call["x"], site):
        return None
    parts = [site.let(each.var.name, each.call.changed(x=x)) for x in site.once(each.call["x"], "add").args]
    return [*parts, let(each.var.name, call("add", *(part.var for part in parts)))]


def _sums_convolutions(atom, site):
    """Whether a variable is the sum of convolutions that can all be scaled."""
    total = site.once(atom, "add")
    convolutions = (site.once(x, "conv3d") for x in total.args) if total else ()
    return total is not None and all(
        bare(conv) if conv else _sums_convolutions(x, site) for x, conv in zip(total.args, convolutions))


def _sum_of_shift(each, site):
    if each.call.op != "add":
        return None
    for name in "xy":
        shift = site.once(each.call[name], "bias")
        if shift is not None:
            total = site.let(each.var.name, each.call.changed(**{name: shift["x"]}))
            return [total, let(each.var.name, call("bias", total.var, shift["bias"]))]
    return None


def _two_in_one(each, site):
    """Two shifts, or two scales, one after the other."""
    name = {"bias": "bias", "scale": "by"}.get(each.call.op)
    before = site.once(each.call["x"], each.call.op) if name else None
    if before is None:
        return None
    one, two = before[name], each.call[name]
    values = site.value(one) + site.value(two) if name == "bias" else site.value(one) * site.value(two)
    return [let(each.var.name, each.call.changed(x=before["x"], **{name: site.constant(two.name, values, two)}))]

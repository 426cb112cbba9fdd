"""What is monotone comes before a maximum, which it leaves where it is: the convolution above can then absorb it."""
from znn.graph.ir import let
from znn.graph.passes.rewriting import rewrite


def pool_last(function):
    """With ``relu(max_filter(x))`` as ``max_filter(relu(x))``; so too bias, and tanh where it increases."""
    return rewrite(function, _monotone_after_maximum)


def _monotone_after_maximum(each, site):
    c = each.call
    if not (c.op in ("relu", "bias") or (c.op == "tanh" and c["a"] * c["b"] >= 0)):
        return None
    pool = site.once(c["x"], "max_filter")
    if pool is None:
        return None
    before = site.let(each.var.name, c.changed(x=pool["x"]))
    return [before, let(each.var.name, pool.changed(x=before.var))]

r"""A network of float32 whose inner convolutions multiply narrower numbers.

The first convolutions, which read the input, and the last, whose result is the network's, stay as they are: of the
others the operands become narrow, sums and biases do not::

    %a = conv3d(%x, @a, result="bf16")      f32 * f32 -> bf16
    %b = conv3d(%a, @b, result="bf16")      bf16 * bf16 -> bf16, summed in f32
    %c = conv3d(%b, @c)                     bf16 * bf16 -> f32
    %y = conv3d(%c, @y)                     f32 * f32 -> f32

Values that meet in an operator other than a convolution, as those of a concat and what is made of them, have one
element type: the narrow one if an inner convolution reads one of them, unless one is the function's input or its
result, is added onto, or is cut where elements cannot be. Where that is not what a convolution reads, a cast stands
before it. Weights are not rounded here: the runtime does it where it has laid them out, at points after it has
transformed them.
"""
from dataclasses import replace

from znn.graph.ir import Constant, Var, call, let
from znn.graph.operators import OPERATORS
from znn.graph.passes.rewriting import Site
from znn.graph.types import TOGETHER, WEIGHTS


def narrow(function, dtype):
    """With elements of type `dtype` inside.

    Parameters
    ----------
    function : Function
        All of it "f32".
    dtype : str
    """
    together = classes(function)
    inside = inner(function, together)
    chosen = element_types(function, together, inside, dtype)
    site, lets = Site(function), []
    known = {key: p for p in function.params for key in (p, (p, "f32"))}

    def operand(atom, wanted):
        """The variable with these elements, cast once for all that need it."""
        if (atom, wanted) not in known:
            lets.append(site.let(atom.name, call("cast", known[atom], to=wanted)))
            known[atom, wanted] = lets[-1].var
        return known[atom, wanted]

    for each in function.lets:
        name, c = each.var.name, each.call
        if c.op == "conv3d":
            wanted, w = dtype if name in inside else "f32", c["weight"]
            c = c.changed(x=operand(c["x"], wanted), weight=Constant(w.name, replace(w.type, dtype=wanted)),
                          onto=c["onto"] and known[c["onto"]], result=dtype if chosen[name] == dtype else None)
        else:
            c = replace(c, args=tuple(known[a] if isinstance(a, Var) else a for a in c.args))
        lets.append(let(name, c))
        known[each.var] = known[each.var, chosen[name]] = lets[-1].var
    return replace(function, lets=tuple(lets), result=known[function.result])


def classes(function):
    """For each variable's name the name that stands for all which must have the same elements."""
    above = {p.name: p.name for p in function.params}

    def top(name):
        while above[name] != name:
            name = above[name]
        return name

    for each in function.lets:
        above[each.var.name] = each.var.name
        c = each.call
        for v in [v for v in (c["onto"],) if v] if c.op == "conv3d" else c.variables:
            above[top(v.name)] = each.var.name
    return {name: top(name) for name in above}


def inner(function, together, last=False):
    """Names of the convolutions that read neither the input nor a single channel and do not make the result, unless
    the `last` ones are asked for, nor share their weights with one that does."""
    inputs, result = {together[p.name] for p in function.params}, not last and together[function.result.name]
    convolutions = [each for each in function.lets if each.call.op == "conv3d"]
    outer = {each.call["weight"] for each in convolutions if each.call["x"].type.shape[0] == 1
             or together[each.call["x"].name] in inputs or together[each.var.name] == result}
    return {each.var.name for each in convolutions if each.call["weight"] not in outer}


def element_types(function, together, inside, dtype):
    """The element type of each variable, by its name; `inside` are the names of convolutions that read `dtype`."""
    wide = {together[v.name] for v in (*function.params, function.result)}
    read = set()
    for each in function.lets:
        c, name = each.call, each.var.name
        if (c.op == "conv3d" and c["onto"] is not None) or _cuts_elements(c, TOGETHER[dtype]) or (
                dtype in WEIGHTS and OPERATORS[c.op].pointwise):
            wide.add(together[name])
        if name in inside:
            read.add(together[c["x"].name])
    return {name: dtype if of in read - wide else "f32" for name, of in together.items()}


def _cuts_elements(c, together):
    """Whether a call joins or takes channels whose number is no multiple of those in an element."""
    if c.op == "concat":
        return any(a.type.shape[0] % together for a in c.args[:-1])
    return c.op == "channels" and bool(
        c["first"] % together or (c["end"] % together and c["end"] < c["x"].type.shape[0]))

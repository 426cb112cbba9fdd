"""Leaving out what is computed for nothing."""
from dataclasses import replace

from znn.graph.ir import Let, Var


def remove_unused(function):
    """Without lets and weights that the result does not depend on."""
    needed, lets = {function.result.name}, []
    for each in reversed(function.lets):
        if each.var.name in needed:
            lets.append(each)
            needed |= {v.name for v in each.call.variables}
    kept = replace(function, lets=tuple(reversed(lets)))
    names = {c.name for c in kept.constants}
    return replace(kept, weights={name: array for name, array in function.weights.items() if name in names})


def merge_equal(function):
    """Of equal calls the first one serves for all."""
    stands_for, first, lets = {}, {}, []
    for each in function.lets:
        args = tuple(stands_for.get(a, a) if isinstance(a, Var) else a for a in each.call.args)
        call = replace(each.call, args=args)
        if call in first:
            stands_for[each.var] = first[call]
        else:
            first[call] = each.var
            lets.append(Let(each.var, call))
    result = stands_for.get(function.result, function.result)
    return remove_unused(replace(function, lets=tuple(lets), result=result))

"""The element types in which a network is computed."""
from dataclasses import replace

import numpy as np

from znn.graph.errors import GraphError
from znn.graph.ir import Constant, Var, let
from znn.graph.passes.narrow import narrow
from znn.graph.passes.quantise import quantise

DTYPES = {"fp32": "f32", "fp64": "f64", "bf16": "f32", "int8": "f32"}  # of what comes in and goes out
ARRAYS = {"f32": np.float32, "f64": np.float64, "bf16": np.uint32, "u8": np.uint32, "i8": np.int8}


def assign_precision(function, precision, ranges=None):
    """With one element type for all values and weights, or a narrow one between the first and last convolutions.

    Parameters
    ----------
    function : Function
    precision : str
        A key of `DTYPES`.
    ranges : mapping, optional
        For "int8" and for nothing else: see `quantise`.

    Raises
    ------
    GraphError
        If there is no such precision, or ranges are missing or too much.
    """
    if precision not in DTYPES:
        raise GraphError(f"precision: expected one of {', '.join(DTYPES)}, found {precision!r}: choose one of these")
    if (precision == "int8") != (ranges is not None):
        raise GraphError(f"precision {precision}: expected {'' if ranges is None else 'no '}ranges or samples, found "
                         f"{'none' if ranges is None else 'some'}: int8, and nothing else, is calibrated, as by "
                         'znn.compile(net, "int8", samples=[...])')
    whole = _in_one(function, DTYPES[precision])
    if precision == "int8":
        return quantise(whole, ranges)
    return narrow(whole, precision) if precision == "bf16" else whole


def _in_one(function, dtype):
    """With one element type for everything."""
    weights = {name: array.astype(ARRAYS[dtype], copy=False) for name, array in function.weights.items()}
    known = {p: Var(p.name, replace(p.type, dtype=dtype)) for p in function.params}
    lets = []
    for each in function.lets:
        args = tuple(_converted(known, a, dtype) for a in each.call.args)
        lets.append(let(each.var.name, replace(each.call, args=args)))
        known[each.var] = lets[-1].var
    return replace(function, params=tuple(known[p] for p in function.params), lets=tuple(lets),
                   result=known[function.result], weights=weights)


def _converted(known, atom, dtype):
    return Constant(atom.name, replace(atom.type, dtype=dtype)) if isinstance(atom, Constant) else known.get(atom)

"""Passes: pure functions from a function to one that means the same, and the order in which they are made.

=================  =====================================================================================
merge_equal        what is computed twice is computed once
fold_constants     scales and shifts become part of the weights around them
pool_last          what is monotone, as an activation, comes before a maximum, where a convolution can absorb it
join_sums          the sum of two convolutions is one over the channels of both
fuse               bias, sum and activation become part of the convolution before them
=================  =====================================================================================

Each leaves out what is not used any more. The element type is chosen last: `assign_precision`.
"""
from znn.graph.errors import GraphError
from znn.graph.passes.fold import fold_constants
from znn.graph.passes.fusion import fuse
from znn.graph.passes.pooling import pool_last
from znn.graph.passes.precision import assign_precision
from znn.graph.passes.sums import join_sums
from znn.graph.passes.tidy import merge_equal

PASSES = {f.__name__: f for f in (merge_equal, fold_constants, pool_last, join_sums, fuse)}


def stages(function, precision="fp32", without=(), ranges=None):
    """A function after each pass.

    Parameters
    ----------
    function : Function
    precision : str
        A key of `precision.DTYPES`.
    without : collection of str
        Passes, keys of `PASSES`, that are not made.
    ranges : mapping, optional
        For "int8": as for `quantise.quantise`.

    Returns
    -------
    dict of str to Function
        By the name of the pass, in order; ``"trace"`` is the function as given, the last one ``"assign_precision"``.

    Raises
    ------
    GraphError
        If there is no such precision or pass, or ranges are missing or too much.
    """
    for name in without:
        if name not in PASSES:
            raise GraphError(f"without: expected passes among {', '.join(PASSES)}, found {name!r}: correct the name")
    made = {"trace": function}
    for name, apply in PASSES.items():
        if name not in without:
            made[name] = function = apply(function)
    made["assign_precision"] = assign_precision(function, precision, ranges)
    return made

"""Passes: pure functions from a function to one that means the same, and the order in which they are made.

=================  =====================================================================================
merge_equal        what is computed twice is computed once
fold_constants     scales and shifts become part of the weights around them
pool_last          what is monotone, as an activation, comes before a maximum, where a convolution can absorb it
join_sums          the sum of two convolutions is one over the channels of both
fuse               bias, sum and activation become part of the convolution before them
mix_channels       a convolution of one voxel becomes part of the convolution before it
=================  =====================================================================================

Each leaves out what is not used any more. The element type is chosen by `assign_precision`, on which only the last of
them depends.
"""
from znn.graph.errors import GraphError
from znn.graph.passes.fold import fold_constants
from znn.graph.passes.fusion import fuse
from znn.graph.passes.mixing import mix_channels
from znn.graph.passes.pooling import pool_last
from znn.graph.passes.precision import assign_precision
from znn.graph.passes.sums import join_sums
from znn.graph.passes.tidy import merge_equal

BEFORE = (merge_equal, fold_constants, pool_last, join_sums, fuse)
PASSES = {f.__name__: f for f in (*BEFORE, mix_channels)}


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
        By the name of the pass, in order; ``"trace"`` is the function as given, and ``"assign_precision"`` stands
        before the last pass.

    Raises
    ------
    GraphError
        If there is no such precision or pass, or ranges are missing or too much.
    """
    for name in without:
        if name not in PASSES:
            raise GraphError(f"without: expected passes among {', '.join(PASSES)}, found {name!r}: correct the name")
    made = {"trace": function}
    chosen = {"assign_precision": lambda function: assign_precision(function, precision, ranges)}
    order = {f.__name__: f for f in BEFORE} | chosen | PASSES
    for name, apply in order.items():
        if name not in without:
            made[name] = function = apply(function)
    return made

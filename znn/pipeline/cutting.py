"""The blocks into which a region is cut, so that they fit a budget and cost little."""
import math

import numpy as np

from znn.pipeline.errors import BudgetTooSmall
from znn.pipeline.memory import GB

CANDIDATES_PER_AXIS = 64
BLOCK_COST = 10_000       # what a block costs beside its voxels, in voxels: reading, packing weights, writing to disk
TOLERANCE = 1.05          # a cut this much dearer than the cheapest is as good, when its blocks are smaller


def block_shape(extent, field_of_view, need, budget, what="the network"):
    """Extent of the output block that costs about the least among those that fit the budget.

    The blocks of one axis are as equal as they can be. Of cuts that cost nearly the same, the one whose blocks take the
    least memory wins: less is lost when a run is stopped.

    Parameters
    ----------
    extent : (z, y, x)
        What is to be written.
    field_of_view : (z, y, x)
    need : memory.Footprint
        Bytes for an input of (z, y, x) voxels.
    budget : float
        Bytes that one block may take.
    what : str
        Names the network in the message.

    Returns
    -------
    (z, y, x)

    Raises
    ------
    BudgetTooSmall
        If not even one voxel with its field of view fits.
    """
    along = ((-1, 1, 1), (-1, 1), (-1,))
    sizes = [_candidates(n).reshape(shape) for n, shape in zip(extent, along)]
    needs = need(*(s + f - 1 for s, f in zip(sizes, field_of_view)))
    if needs.min() > budget:
        raise BudgetTooSmall(f"memory budget: {what} needs at least {needs.min() / GB:.3f} GB for a block of one voxel "
                             f"and its field of view {tuple(field_of_view)}, found {max(budget, 0) / GB:.3f} GB beside "
                             "what the program holds itself; raise memory_budget_gb")
    cost = np.where(needs > budget, np.inf, cut_cost(extent, sizes, field_of_view))
    good = np.argwhere(cost <= TOLERANCE * cost.min())
    least = min(good, key=lambda i: (needs[tuple(i)], cost[tuple(i)]))
    return tuple(int(s.ravel()[i]) for s, i in zip(sizes, least))


def cut_cost(extent, shape, field_of_view):
    """What it costs to write a region in blocks: the voxels read in all, context included, and something a block.

    Parameters
    ----------
    extent : (z, y, x)
        Of the region.
    shape : (z, y, x) of numbers, or of arrays that broadcast
        Of the blocks.
    field_of_view : (z, y, x)
    """
    counts = [-(-n // s) for n, s in zip(extent, shape)]
    return (math.prod(n + k * (f - 1.0) for n, k, f in zip(extent, counts, field_of_view))
            + BLOCK_COST * math.prod(counts))


def _candidates(n):
    """Extents that cut n voxels into equal parts (the last one shorter), thinned out to a bounded number."""
    extents = np.unique(-(-n // np.arange(1, n + 1)))
    if len(extents) > CANDIDATES_PER_AXIS:
        extents = np.unique(extents[np.searchsorted(extents, np.geomspace(1, n, CANDIDATES_PER_AXIS).astype(int))])
    return extents.astype(np.int64)

"""Columns, in which the stages of a chain sweep through the sections together: how wide they are.

A column's earlier maps reach beyond it by the context of the later stages, so neighbours compute the same voxels there;
wide columns waste less of this, and hold larger sections.
"""
import itertools
import math
from dataclasses import replace

from znn.pipeline.cutting import block_shape, cut_cost
from znn.pipeline.errors import BudgetTooSmall
from znn.pipeline.memory import GB
from znn.pipeline.work import Plan

SHARES = (0.1, 0.2, 0.3, 0.45, 0.6)        # of the budget for the sections that are held, which are tried


def in_columns(stages, budget):
    """The cheapest plan whose blocks fit into a share of the budget, and the sections that are held into the rest.

    Parameters
    ----------
    stages : tuple of Stage
        Two or more, with regions.
    budget : float

    Returns
    -------
    Plan

    Raises
    ------
    BudgetTooSmall
    """
    found, failure = [], None
    for share in SHARES:
        try:
            found.append(_with_share(stages, budget, share))
        except BudgetTooSmall as error:
            failure = failure or error
    if not found:
        raise failure
    return min(found, key=_cost)


def _with_share(stages, budget, share):
    """The plan whose columns overlap least, of those whose sections fit into a share of the budget."""
    for_block, for_sections, last = (1 - share) * budget, share * budget, stages[-1]
    shape = block_shape(last.region.shape, last.reach, last.need, for_block, last.name)
    stages = (*stages[:-1], replace(last, block_shape=shape))
    widths = (_widths(n, s) for n, s in zip(last.region.shape[1:], shape[1:]))
    fitting = [column for column in itertools.product(*widths) if _sections(stages, column) <= for_sections]
    if not fitting:
        least = _sections(stages, shape[1:]) / GB
        raise BudgetTooSmall(f"memory budget: the sections of earlier maps that {last.name} needs take at least "
                             f"{least:.3f} GB, found {for_sections / GB:.3f} GB beside its blocks; raise "
                             "memory_budget_gb")
    column = min(fitting, key=lambda c: _overlap(stages, c))
    cut = [replace(stage, block_shape=block_shape((depth, *extent), stage.reach, stage.need, for_block, stage.name))
           for stage, depth, extent in zip(stages[:-1], _depths(stages), _extents(stages, column))]
    return Plan((*cut, stages[-1]), budget, column)


def _widths(n, step):
    """Extents of columns of whole blocks, as equal as they can be."""
    blocks = -(-n // step)
    return sorted({min(n, step * -(-blocks // k)) for k in range(1, blocks + 1)})


def _depths(stages):
    """How deep layers may be: one section where a network sees one, else as deep as those of the stage after; list."""
    found = [stages[-1].block_shape[0]]
    for stage in stages[-2::-1]:
        found.append(1 if stage.reach[0] == 1 else found[-1])
    return found[:0:-1]


def _extents(stages, column):
    """(y, x) that each stage but the last writes for a column of the last one; list."""
    found, extent = [], column
    for stage, before in zip(stages[:0:-1], stages[-2::-1]):
        extent = tuple(min(e + r - 1, n) for e, r, n in zip(extent, stage.reach[1:], before.region.shape[1:]))
        found.append(extent)
    return found[::-1]


def _sections(stages, column):
    """At most so many bytes of sections are held."""
    depths = [*_depths(stages), stages[-1].block_shape[0]]
    held = [after + stage.reach[0] - 1 + 2 * (own - 1) for own, after, stage in zip(depths, depths[1:], stages[1:])]
    return sum(4 * n * y * x for n, (y, x) in zip(held, _extents(stages, column)))


def _columns(stages, column):
    """How many columns there are."""
    return math.prod(-(-n // c) for n, c in zip(stages[-1].region.shape[1:], column))


def _overlap(stages, column):
    """Products of the earlier stages, for a section."""
    return _columns(stages, column) * sum(s.need.products_per_voxel * y * x
                                          for s, (y, x) in zip(stages, _extents(stages, column)))


def _cost(plan):
    """Products in all."""
    last = plan.stages[-1]
    extents = [(s.region.shape[0], *e) for s, e in zip(plan.stages, _extents(plan.stages, plan.column))]
    earlier = sum(s.need.products_per_voxel * cut_cost(e, s.block_shape, s.reach, s.need)
                  for s, e in zip(plan.stages, extents))
    return (_columns(plan.stages, plan.column) * earlier
            + last.need.products_per_voxel * cut_cost(last.region.shape, last.block_shape, last.reach, last.need))

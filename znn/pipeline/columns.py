"""How the work of a group of stages is cut: how much memory is for blocks, how much for sections of earlier maps."""
import itertools
import math
from dataclasses import replace

from znn.pipeline.cutting import block_shape, cut_cost
from znn.pipeline.errors import BudgetTooSmall
from znn.pipeline.groups import Group
from znn.pipeline.memory import GB

SHARES = (0.05, 0.1, 0.2, 0.3, 0.45, 0.6)      # of the budget for sections, which are tried


def cut(stages, budget):
    """The cheapest cut that fits the budget.

    Parameters
    ----------
    stages : sequence of Stage
        With regions.
    budget : float
        Bytes that may be taken at a time.

    Returns
    -------
    Group

    Raises
    ------
    BudgetTooSmall
    """
    if len(stages) == 1:
        return _with_blocks(stages, stages[0].region.shape[1:], budget, budget)
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
    """The cut into columns that overlap least, of those whose sections fit a share of the budget."""
    whole = _with_blocks(stages, stages[-1].region.shape[1:], budget, (1 - share) * budget)
    widths = map(_widths, whole.last.region.shape[1:], whole.last.block_shape[1:])
    fitting = [each for each in (replace(whole, column=column) for column in itertools.product(*widths))
               if each.section_bytes <= share * budget]
    if not fitting:
        least = replace(whole, column=whole.last.block_shape[1:]).section_bytes
        raise BudgetTooSmall(f"memory budget: the sections of earlier maps that {whole.last.name} reads take at least "
                             f"{least / GB:.3f} GB, found {share * budget / GB:.3f} GB beside its blocks; raise "
                             "memory_budget_gb")
    return _with_blocks(stages, min(fitting, key=_written).column, budget, (1 - share) * budget)


def _with_blocks(stages, column, budget, for_block):
    """The stages in blocks that fit `for_block` bytes, in columns of that extent.

    A network that sees a single section goes section by section, others in layers as deep as those of the stage after
    them, so that few sections are held.
    """
    last = stages[-1]
    found = [replace(last, block_shape=block_shape(last.region.shape, last.field_of_view, last.need, for_block,
                                                   last.name))]
    extents = Group(tuple(stages), column, budget).extents()
    for stage, extent in zip(stages[-2::-1], extents[-2::-1]):
        depth = 1 if stage.field_of_view[0] == 1 else min(found[-1].block_shape[0], extent[0])
        shape = block_shape((depth, *extent[1:]), stage.field_of_view, stage.need, for_block, stage.name)
        found.append(replace(stage, block_shape=shape))
    return Group(tuple(found[::-1]), tuple(column), budget)


def _widths(n, step):
    """Extents of columns of whole blocks, as equal as they can be."""
    count = -(-n // step)
    return sorted({min(n, step * -(-count // k)) for k in range(1, count + 1)})


def _count(group):
    return math.prod(-(-n // c) for n, c in zip(group.last.region.shape[1:], group.column))


def _written(group):
    """Voxels that the earlier stages write, those where columns overlap as often as they are written."""
    return _count(group) * sum(map(math.prod, group.extents()[:-1]))


def _cost(group):
    """What all stages cost in all columns."""
    earlier = sum(cut_cost(extent, stage.block_shape, stage.field_of_view)
                  for stage, extent in zip(group.stages[:-1], group.extents()))
    last = group.last
    return _count(group) * earlier + cut_cost(last.region.shape, last.block_shape, last.field_of_view)

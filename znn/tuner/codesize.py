"""What a kernel's code will hold and what it will execute, counted before a line of it is written."""
from functools import cache, lru_cache

import numpy as np

from znn.codegen.plan import OUT, A, B

LOOP = 10     # instructions to run a loop, and to move the tensors' places
STORE = 4     # to finish and store a sum: what is there already, bias, activation
PLANS = 128   # that are remembered: a schedule is met as a neighbour, then looked at


def instructions(plan, native):
    """About how many instructions a plan makes, over all copies of the code for shorter blocks; int.

    Compile time follows from it.
    """
    return int(counted(plan, native)[1] @ (1, 1, 1, STORE, LOOP))


@lru_cache(PLANS)
def counted(plan, native):
    """Multiplications, loads of a and of b, and stores, in instructions, and turns of loops, that a plan makes.

    A loop whose range is not a multiple of its step makes two copies of what is inside it.  A tile loads each operand
    once for every step of the sum and every place in the output that it depends on; a vector whose lanes are not
    neighbours in memory takes an instruction for each.

    Parameters
    ----------
    plan : Plan
    native : int
        Lanes of a register.

    Returns
    -------
    ndarray, (2, 5)
        What is executed, and what is in the code.
    """
    loops, lanes_from = plan.loops, len(plan.loops) - len(plan.lane_loops)
    summed = [loop.dim in plan.c.reductions for loop in loops]
    dims = list(plan.c.extents)
    place = [dims.index(loop.dim) for loop in loops]
    costs, wide = {t: _vector_cost(plan, t, native) for t in (OUT, A, B)}, -(-plan.lanes // native)

    def blocks(k, sizes):
        """(how many, sizes inside) of the full and of the shorter blocks of loop k."""
        i, step = place[k], loops[k].step
        full, rest = divmod(sizes[i], step)
        return [(n, (*sizes[:i], size, *sizes[i + 1:])) for n, size in ((full, step), (1, rest)) if n and size]

    def vectors(k, sizes, counted):
        """How many vectors the tile makes from loop k on, over the loops that are counted."""
        if k == lanes_from:
            return -(-sizes[place[k]] // plan.lanes) if len(plan.lane_loops) == 1 and counted[k] else 1
        if not counted[k]:
            return vectors(k + 1, blocks(k, sizes)[0][1], counted)
        return sum(n * vectors(k + 1, inside, counted) for n, inside in blocks(k, sizes))

    loaded = {t: [s or plan.advance[t][k] != 0 for k, s in enumerate(summed)] for t in (A, B)}
    stored, every = [not s for s in summed], [True] * len(loops)

    @cache
    def code(k, sizes):
        out = np.zeros((2, 5))
        if k == plan.scope:
            out[:, 3] = costs[OUT] * vectors(plan.tile, sizes, stored)
        if k < plan.tile:
            for n, inside in blocks(k, sizes):
                times = np.array((n, 1))
                out += times[:, None] * code(k + 1, inside)
                out[:, 4] += times
        else:
            out[:, :3] = (wide * vectors(k, sizes, every), *(costs[t] * vectors(k, sizes, loaded[t]) for t in (A, B)))
        return out

    return code(0, tuple(plan.c.extents.values()))


def _vector_cost(plan, t, native):
    """Instructions to load or store a vector of a tensor: one a register for equal or neighbouring lanes, two for a
    repeated row of neighbours if the vector can be shuffled at once, else one for every lane."""
    used = [plan.lanes] if len(plan.lane_loops) == 1 else [plan.counts[k] for k in plan.lane_loops]
    if t == OUT:  # the lanes of a sum are added up first
        used = [1 if plan.loops[k].dim in plan.c.reductions else n for k, n in zip(plan.lane_loops, used)]
    offsets = [o for o in plan.lane_offsets(plan.advance[t], used) if o is not None]
    places, registers = set(offsets), -(-len(offsets) // native)
    row = max(places) - min(places) + 1 == len(places)
    if len(places) == 1 or offsets == list(range(offsets[0], offsets[0] + len(offsets))):
        cost = registers
    else:
        cost = 2 * registers if row and _shuffles(plan.lanes, native) else len(offsets)
    return cost + (_fold_cost(plan, native) if t == OUT else 0)


def _fold_cost(plan, native):
    """Instructions to add up the lanes of sums."""
    shuffles = sum(plan.counts[k].bit_length() for k in plan.lane_loops if plan.loops[k].dim in plan.c.reductions)
    return shuffles * (-(-plan.lanes // native) if _shuffles(plan.lanes, native) else plan.lanes)


def _shuffles(lanes, native):
    """Whether a shuffle takes an instruction a register: of long vectors of odd length it takes one a lane."""
    return lanes <= native or not lanes & (lanes - 1)

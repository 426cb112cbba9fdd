"""What a schedule's kernel does, by counting: operations and bytes moved, before a line of it is written.

The counts are what an analytic model of a kernel's time would be made of (the roofline of Williams et al., CACM 2009,
with a roof for each cache); a judge reads them beside the loops, and learns what each of them costs.
"""
import math

import numba
import numpy as np

from znn.codegen.plan import OUT, A, B
from znn.tuner.codesize import counted, instructions
from znn.tuner.processor import caches

PORTS = 2          # of multiplications, and of loads, a cycle
LATENCY = 4        # cycles of a multiplication
WIDTH = 4          # instructions that begin in a cycle
ESTIMATES = ("multiplications", "loads a", "loads b", "stores", "turns", "sums", "waiting", "spilled", "code", "idle",
             "tasks", "l1", "l2", "l3", "task", "packed", "copies", "asked", "wide", "issued")
_LOG = 8           # natural logarithms are divided by this, and
_ZERO = 0.5        # shifted by this


def estimates(problem, plan):
    """Counts of a plan, relative to the operations that its contraction needs.

    Parameters
    ----------
    problem : Problem
    plan : Plan
        Of a schedule of the problem.

    Returns
    -------
    ndarray, (len(ESTIMATES),), float32
        Logarithms, scaled to about 0 to 1.
    """
    native, threads = problem.lanes, problem.threads or numba.get_num_threads()
    needed, known = math.prod(plan.c.extents.values()) / native, caches()
    runs, _ = counted(plan, native)
    wide = -(-plan.lanes // native)
    sums = wide * math.prod(plan.counts[k] for k in range(plan.tile, len(plan.loops))
                            if k not in plan.lane_loops and plan.loops[k].dim not in plan.c.reductions)
    waiting = max(1.0, PORTS * LATENCY / sums)  # for the last multiplication into the same sum
    issued = max(runs[0] * waiting, runs[1] + runs[2], runs @ (1, 1, 1, 1, WIDTH) * PORTS / WIDTH)
    touched = footprints(plan, problem.dtype.itemsize)
    fetched = [sum(traffic(plan, touched, room)) for room in (known.l1, known.l2, known.l3)]
    packed = plan.packing.size * plan.tasks if plan.packed == "inside" else 0
    values = [*runs / needed, sums, waiting, max(1.0, (sums + wide + 1) / problem.target.registers),
              instructions(plan, native), -(-plan.tasks // threads) * threads / plan.tasks, plan.tasks / threads,
              *(f / needed for f in fetched), 1 + sum(touched[plan.n_parallel]) / known.l1, 1 + packed / needed,
              plan.copies, 1 + plan.asked if plan.ahead else 1, wide, issued / needed]
    return np.clip(np.log(np.maximum(values, 1e-9)) / _LOG + _ZERO, 0, 2).astype(np.float32)


def footprints(plan, itemsize):
    """Bytes of out, a and b, [out, a, b], that the loops from each on touch; the last entry is of none."""
    strides = [dict(access.strides) for access in (plan.c.out, plan.c.a, plan.c.b)]
    inside, found = {}, [[itemsize] * len(strides)]
    for loop, count in zip(reversed(plan.loops), reversed(plan.counts)):
        inside[loop.dim] = inside.get(loop.dim, 1) * count
        found.append([itemsize * _addresses([(abs(of[d]), n) for d, n in inside.items() if of.get(d)])
                      for of in strides])
    return found[::-1]


def _addresses(steps):
    """How many elements loops of (stride, count) touch: no more than there are between the first and the last."""
    places, span = 1, 1
    for stride, count in steps:
        places *= count
        span += stride * (count - 1)
    return min(places, span)


def traffic(plan, footprints, room):
    """Bytes of out, a and b that come into a cache of so many bytes, all in all."""
    k = next(i for i, found in enumerate(footprints) if sum(found) <= room or i == len(footprints) - 1)
    out = []
    for t in (OUT, A, B):
        trips, stays = 1, True
        for j in range(k - 1, -1, -1):
            stays = stays and not plan.advance[t][j]
            trips *= 1 if stays else plan.counts[j]
        out.append(trips * footprints[k][t])
    return out

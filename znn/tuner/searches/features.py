"""A loop nest as numbers for a cost model: AutoTVM's features (Chen et al. 2018, arXiv 1805.08166) of our schedules.

AutoTVM knows three kinds: "itervar", a row for each loop; "curve", relations between the loops' reuse and footprint,
which depend on nothing but the program; and "knob", the raw choices.  Of our nests, whose number of loops varies,
"knob" orders schedules best: with 24 measurements of each of 40 problems to learn from, Spearman's correlation on
the others was 0.60, against 0.42 of "itervar" and 0.40 of "curve" (means, three random divisions).
"""
import numpy as np

from znn.loops.schedule import MARKS
from znn.tuner.problem import MAX_LOOPS

SAMPLES = 20  # of a curve
ROW = 4 + len(MARKS) + 3 * 3


def itervar(problem, schedule):
    """A row for each loop, from the innermost, zero beyond the last; (MAX_LOOPS * ROW,).

    Steps, depth, steps of it and all around it, of it and all inside it, its mark, and for each tensor the stride, how
    many elements the loop and those inside it touch (`count`: the steps of loops that move the tensor) and how often
    each (`reuse`: those of the others), as log2(x + 1).
    """
    loops, steps, around, tensors = _nest(problem, schedule)
    rows = [steps, np.arange(len(loops)), around, _within(steps), *([x.mark == m for x in loops] for m in MARKS)]
    rows += [row for tensor in tensors for row in tensor]
    out = np.zeros((MAX_LOOPS, ROW))
    out[:len(loops)] = np.log2(np.array(rows, float).T + 1)[::-1]
    return out.ravel()


def curve(problem, schedule):
    """"Context relations" of each tensor; (3 * 4 * SAMPLES * 2,).

    Where count passes 1, 2, 4, ..., the reuse at that depth and how far count is passed; the same with reuse and count
    exchanged, with count and the steps around, and with these exchanged; in log2.
    """
    _, _, around, tensors = _nest(problem, schedule)
    return np.concatenate([_sampled(x, y) for _, count, reuse in tensors
                           for x, y in ((count, reuse), (reuse, count), (count, around), (around, count))])


def knob(problem, schedule):
    """For each dimension and mark the range of its outermost loop so marked, in log2, and how many loops are from there
    on; -1 where there is none; (2 * dimensions * len(MARKS),)."""
    out = {(d.name, mark): (-1, -1) for d in problem.contraction.dims for mark in MARKS}
    ranges = schedule.ranges(problem.contraction)
    for k, (loop, size) in reversed(list(enumerate(zip(schedule.loops, ranges)))):
        out[loop.dim, loop.mark] = np.log2(size), len(ranges) - k
    return np.array(list(out.values()), float).ravel()


KINDS = {"itervar": itervar, "curve": curve, "knob": knob}


def _nest(problem, schedule):
    """Loops, their steps, the steps of each and all around it, and for each tensor (stride, count, reuse)."""
    contraction, loops = problem.contraction, schedule.loops
    steps = np.array([-(-size // loop.step) for size, loop in zip(schedule.ranges(contraction), loops)], float)
    tensors = []
    for access in (contraction.out, contraction.a, contraction.b):
        strides = dict(access.strides)
        stride = np.array([abs(strides.get(loop.dim, 0)) * loop.step for loop in loops])
        tensors.append((stride, _within(np.where(stride, steps, 1)), _within(np.where(stride, 1, steps))))
    return loops, steps, np.cumprod(steps), tensors


def _within(factors):
    """Product of the factor of each loop and those inside it."""
    return np.cumprod(factors[::-1])[::-1]


def _sampled(x, y):
    """(value of curve y, how far x is passed) where the curve x passes 0, 1, 2, ...; both begin at 0."""
    x, y = (np.concatenate([[0], np.sort(np.log2(c))]) for c in (x, y))
    wanted = np.arange(SAMPLES)
    at = np.searchsorted(x, wanted + 1e-6, side="right") - 1
    return np.stack([y[at], wanted - x[at]], 1).ravel()

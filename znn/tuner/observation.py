"""What a policy sees: a loop nest with a cursor as numbers, whatever its dimensions and tensors are called.

For each loop, from the outermost: the cursor, sizes, what kind of dimension it is, its marks, where the kernel packs,
sums and unrolls, and for each tensor a log2 histogram of the strides (after LoopTune, arXiv 2309.01825, which has one
for all tensors) and how much of it is touched inside.  Sizes are log2, divided to be about 0 to 1.
"""
import math

import numba
import numpy as np

from znn.codegen.plan import OUT, A, B
from znn.loops.schedule import MARKS
from znn.tuner.estimate import ESTIMATES, estimates
from znn.tuner.problem import MAX_LOOPS
from znn.tuner.processor import caches

KINDS = (("n", "p"), ("co", "ci"), ("z",), ("y",), ("x",), ("kz",), ("ky",), ("kx",))  # of dimensions, by name
TENSORS = (OUT, A, B)
BINS = 17          # strides: 0, 1, 2 to 3, 4 to 7, ... from 2**15 on
_LOG = 16          # log2 sizes are divided by this
_LOG_BYTES = 32    # and those of memory by this
LARGEST = 2.0      # number in an observation; none is negative
PACKINGS = (None, "before", "inside")

FEATURES = ("cursor", "steps", "step", "range", "tail", "reduction", *("/".join(names) for names in KINDS),
            *(mark or "plain" for mark in MARKS), "packed", "scope", "tile", *(f"bytes {t}" for t in ("out", "a", "b")),
            *(f"stride {t} {i}" for t in ("out", "a", "b") for i in range(BINS)))
HISTOGRAMS = FEATURES.index("stride out 0")
CIRCUMSTANCES = ("lanes", "registers", "l1", "l2", "l3", "threads", "itemsize", "packed no", "packed before",
                 "packed inside", "accumulate", "bias", "activation", "own tasks", "calls")
SIZE = MAX_LOOPS * (len(FEATURES) + 1) + len(CIRCUMSTANCES) + len(ESTIMATES)


def observe(state):
    """A state as numbers.

    Parameters
    ----------
    state : State

    Returns
    -------
    ndarray, (SIZE,), float32
        The loops (MAX_LOOPS, len(FEATURES)), zero beyond the last one; then for each whether there is one; then the
        circumstances (len(CIRCUMSTANCES),) and what is counted of the kernel (len(ESTIMATES),).  `parts` takes it
        apart.
    """
    plan = state.problem.plan(state.schedule)
    loops = np.zeros((MAX_LOOPS, len(FEATURES)), np.float32)
    count = len(state.schedule.loops)
    loops[:count] = loop_rows(state, plan)
    there = np.arange(MAX_LOOPS) < count
    return np.concatenate([loops.ravel(), there, circumstances(state.problem),
                           estimates(state.problem, plan)]).astype(np.float32)


def parts(observation):
    """Loops (..., MAX_LOOPS, len(FEATURES)), mask (..., MAX_LOOPS), circumstances and estimates of observations, arrays
    or tensors (..., SIZE)."""
    loops, there = MAX_LOOPS * len(FEATURES), MAX_LOOPS * (len(FEATURES) + 1)
    counts = there + len(CIRCUMSTANCES)
    return (observation[..., :loops].reshape(*observation.shape[:-1], MAX_LOOPS, len(FEATURES)),
            observation[..., loops:there], observation[..., there:counts], observation[..., counts:])


def loop_rows(state, plan):
    """Features of the loops of a state whose schedule's plan this is, (loops, len(FEATURES)), float32."""
    problem, schedule = state.problem, state.schedule
    contraction, ranges = problem.contraction, schedule.ranges(problem.contraction)
    inside, rows = dict(contraction.extents), np.zeros((len(ranges), len(FEATURES)), np.float32)
    pack = len(plan.loops) if plan.pack is None else plan.pack
    for k, (loop, size) in enumerate(zip(schedule.loops, ranges)):
        inside[loop.dim] = loop.step
        rows[k, :HISTOGRAMS] = [
            k == state.cursor, _log(-(-size // loop.step)), _log(loop.step), _log(size), size % loop.step / loop.step,
            loop.dim in contraction.reductions, *(loop.dim in names for names in KINDS),
            *(loop.mark == mark for mark in MARKS), k >= pack, k >= plan.scope, k >= plan.tile,
            *(_touched(access, inside, problem.dtype) for access in (contraction.out, contraction.a, contraction.b))]
        for i, tensor in enumerate(TENSORS):
            stride = abs(plan.advance[tensor][k if k + 1 < len(ranges) else -1])
            rows[k, HISTOGRAMS + i * BINS + _bin(stride)] = 1
    return rows


def circumstances(problem):
    """What is the same for all schedules of a problem; list of len(CIRCUMSTANCES)."""
    caches_of, epilogue = caches(), problem.epilogue
    return [_log(problem.lanes), problem.target.registers / 32,
            *(math.log2(size) / _LOG_BYTES for size in (caches_of.l1, caches_of.l2, caches_of.l3)),
            _log(problem.threads or numba.get_num_threads()), problem.dtype.itemsize / 8,
            *(problem.packed == packing for packing in PACKINGS), epilogue.accumulate, epilogue.bias,
            epilogue.activation is not None, problem.task is not None, _log(problem.calls)]


def _log(size):
    return math.log2(size) / _LOG


def _bin(stride):
    """Of the histogram: 0 for 0, else 1 + log2, rounded down."""
    return min(stride.bit_length(), BINS - 1)


def _touched(access, sizes, dtype):
    """log2 of the bytes of a tensor that a block of these sizes touches, counting overlaps again."""
    return math.log2(dtype.itemsize * math.prod(sizes[d] for d, _ in access.strides)) / _LOG_BYTES

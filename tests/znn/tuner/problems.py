"""Small problems of every kind, and random walks from them."""
import numpy as np
from hypothesis import strategies as st

from tests.znn.loops.nests import convolutions
from znn.codegen import target
from znn.codegen.plan import PLAIN, Epilogue
from znn.loops import conv_forward, points_forward, points_weights
from znn.runtime import default
from znn.tuner.moves import ACTIONS, State, act, mask
from znn.tuner.problem import Problem

F32 = np.dtype(np.float32)
AVX512 = target.TARGETS["avx512"]  # masks and observations need no such processor


def forward(where=AVX512, extent=(2, 5, 21), channels=(6, 8), kernel=(1, 3, 3)):
    """A convolution with a bias and an activation."""
    c = conv_forward(1, *channels, kernel, extent)
    return Problem(c, default.spatial(c, where.lanes(F32), where.registers), where, F32, Epilogue(False, True, "relu"),
                   "before")


def of_contraction(c, where):
    """The problem of a contraction as convolutions pose it."""
    lanes, registers = where.lanes(F32), where.registers
    if c.name == "conv_backward_weights":
        return Problem(c, default.weights(c, lanes, registers, 4), where, F32, PLAIN, "inside")
    epilogue = Epilogue(bias=True) if c.bias else PLAIN
    return Problem(c, default.spatial(c, lanes, registers), where, F32, epilogue, "before")


def at_points(where=AVX512):
    """Both contractions at points."""
    lanes, registers = where.lanes(F32), where.registers
    c = points_forward(5, 6, 8, 3, (0, 21), 2, 48, 48)
    d = points_weights(6, 8, 3, 4, 21, 2, 48, 48, 4)
    return [Problem(c, default.spatial(c, lanes, registers), where, F32, PLAIN, "before", "p", threads=1),
            Problem(d, default.weights(d, lanes, registers, 4, 1), where, F32, Epilogue(accumulate=True), "inside",
                    calls=5, threads=1)]


def problems():
    """Convolutions and products at points, for several processors."""
    targets = st.sampled_from(list(target.TARGETS.values()))
    direct = st.builds(of_contraction, convolutions(), targets)
    return st.one_of(direct, targets.flatmap(lambda t: st.sampled_from(at_points(t))))


def walk(problem, rng, steps):
    """The states of a random walk over legal actions; `rng` is a `random.Random`."""
    state = State(problem, problem.start)
    yield state
    for _ in range(steps):
        legal = np.flatnonzero(mask(state))
        if not len(legal):
            return
        state = act(state, ACTIONS[rng.choice(legal)])
        yield state

import dataclasses
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.znn.tuner.problems import F32, forward, problems, walk
from znn.codegen import target
from znn.loops import Access, Contraction, Schedule, conv_forward
from znn.tuner.moves import ACTIONS, State, act, mask
from znn.tuner.observation import CIRCUMSTANCES, FEATURES, LARGEST, SIZE, observe, parts
from znn.tuner.problem import MAX_LOOPS
from znn.tuner.processor import Caches, caches

PLACE = {name: i for i, name in enumerate(FEATURES)}


def renamed(access):
    return Access(access.name * 2, access.strides, access.start)


def another(state):
    """The same nest: dimensions listed in another order, tensors with other names, everything built anew."""
    p, c = state.problem, state.problem.contraction
    guards = tuple(dataclasses.replace(g, place=renamed(g.place)) for g in c.guards)
    again = Contraction("again", c.dims[::-1], renamed(c.out), renamed(c.a), renamed(c.b), c.bias, guards)
    schedule = Schedule.parse(str(state.schedule))
    return State(dataclasses.replace(p, contraction=again, start=schedule), schedule, state.cursor)


@given(problems(), st.integers(0, 2**32))
def test_equal_nests_look_equal(problem, seed):
    *_, state = walk(problem, random.Random(seed), 5)
    assert np.array_equal(observe(state), observe(another(state)))


@given(problems(), st.integers(0, 2**32))
def test_every_action_changes_what_is_seen(problem, seed):
    *_, state = walk(problem, random.Random(seed), 5)
    seen = observe(state)
    for action, legal in zip(ACTIONS, mask(state)):
        assert not legal or not np.array_equal(seen, observe(act(state, action))), str(action)


@given(problems(), st.integers(0, 2**32))
def test_size_and_padding(problem, seed):
    *_, state = walk(problem, random.Random(seed), 5)
    seen = observe(state)
    loops, there, circumstances, _ = parts(seen)
    count = len(state.schedule.loops)
    assert seen.shape == (SIZE,) and seen.dtype == np.float32 and np.isfinite(seen).all()
    assert there.tolist() == [1] * count + [0] * (MAX_LOOPS - count)
    assert not loops[count:].any() and circumstances.shape == (len(CIRCUMSTANCES),)
    assert loops[:, PLACE["cursor"]].tolist() == [float(i == state.cursor and i < count) for i in range(MAX_LOOPS)]


def test_a_nest_read_by_hand():
    problem = forward(extent=(2, 5, 21), channels=(6, 8))
    text = "z:1 parallel, y:1 parallel, x:16, co:4, ci:1, ky:1, kx:1 unroll, co:1 unroll, x:1 vector"
    loops, *_ = parts(observe(State(problem, Schedule.parse(text), 3)))
    x, co, ci, last = loops[2], loops[3], loops[4], loops[8]
    read = lambda row, name: row[PLACE[name]]  # noqa: E731
    assert [read(co, name) * 16 for name in ("steps", "step", "range")] == [1, 2, 3]
    assert (read(co, "cursor"), read(co, "co/ci"), read(co, "plain"), read(co, "reduction")) == (1, 1, 1, 0)
    assert read(x, "tail") == pytest.approx(5 / 16)
    assert (read(ci, "reduction"), read(ci, "scope"), read(ci, "tile")) == (1, 1, 0)
    assert (read(last, "tile"), read(last, "vector"), read(last, "stride a 1"), read(last, "stride b 0")) == (1,) * 4
    assert read(ci, "stride out 0") == 1
    assert read(ci, "stride a 9") == 1  # 2 * 7 * 23 = 322 elements from channel to channel
    assert read(co, "bytes out") * 32 == 2 + 2 + 4  # 4 bytes, 4 channels, 16 columns of a row
    assert read(co, "bytes b") * 32 == pytest.approx(np.log2(4 * 4 * 6 * 9))


def test_the_processor_is_seen():
    wide, narrow = (parts(observe(State(p, p.start)))[2] for p in (forward(target.TARGETS[t])
                                                                   for t in ("avx512", "avx2")))
    where = {name: i for i, name in enumerate(CIRCUMSTANCES)}
    assert wide[where["lanes"]] * 16 == 4 and narrow[where["lanes"]] * 16 == 3
    assert (wide[where["registers"]], narrow[where["registers"]]) == (1, 0.5)
    assert wide[where["itemsize"]] * 8 == F32.itemsize


def test_caches_as_linux_lists_them(tmp_path):
    for i, (level, kind, size) in enumerate([(1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "2048K"),
                                             (3, "Unified", "260M")]):
        folder = tmp_path / f"index{i}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{text}\n")
    assert caches(tmp_path) == Caches(48 << 10, 2 << 20, 260 << 20)
    assert caches(tmp_path / "absent") == Caches()


def test_a_large_nest_fits():
    c = conv_forward(1, 200, 200, (5, 5, 5), (8, 256, 256))
    problem = dataclasses.replace(forward(), contraction=c, start=Schedule.parse(
        "z:1 parallel, y:1 parallel, co:1, ci:1, kz:1, ky:1, kx:1, x:1 vector"))
    seen = observe(State(problem, problem.start))
    assert seen.min() == 0 and 1 < seen.max() < LARGEST

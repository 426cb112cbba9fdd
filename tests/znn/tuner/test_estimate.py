import math
import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.znn.tuner.problems import forward, problems, walk
from znn.codegen import target
from znn.loops import Schedule
from znn.tuner.codesize import counted
from znn.tuner.estimate import ESTIMATES, estimates, footprints, traffic

PLACE = {name: i for i, name in enumerate(ESTIMATES)}


def plan_of(text, **options):
    problem = forward(target.TARGETS["avx512"], **options)
    return problem, problem.plan(Schedule.parse(text))


@given(problems(), st.integers(0, 2**32))
def test_estimates_are_numbers_within_bounds_and_nothing_is_left_undone(problem, seed):
    *_, state = walk(problem, random.Random(seed), 5)
    plan = problem.plan(state.schedule)
    found = estimates(problem, plan)
    assert found.shape == (len(ESTIMATES),) and (found >= 0).all() and (found <= 2).all()
    runs, code = counted(plan, problem.lanes)
    assert runs[0] * problem.lanes >= math.prod(problem.contraction.extents.values())
    assert (runs >= code).all()


def test_a_nest_counted_by_hand():
    text = "z:1 parallel, y:1 parallel, x:16, co:4, ci:1, ky:1, kx:1 unroll, co:1 unroll, x:1 vector"
    problem, plan = plan_of(text, extent=(2, 5, 21), channels=(6, 8))
    kernel = math.prod(n for d, n in problem.contraction.extents.items() if d in ("kz", "ky", "kx"))
    tiles = 2 * 5 * 2 * 2  # rows, a full and a short block of columns, two blocks of four outputs
    runs, _ = counted(plan, problem.lanes)
    assert runs[:4].tolist() == [tiles * 4 * 6 * kernel, tiles * 6 * kernel, tiles * 4 * 6 * kernel, tiles * 4]
    padding = 8640 / (math.prod(problem.contraction.extents.values()) / problem.lanes)  # of 21 columns to 32
    assert estimates(problem, plan)[PLACE["multiplications"]] == np.float32(np.log(padding) / 8 + 0.5)


def test_what_fits_a_cache_comes_once():
    _, plan = plan_of("z:1 parallel, y:1 parallel, co:1, ci:1, ky:1, kx:1, x:1 vector", extent=(1, 4, 32),
                            channels=(2, 3))
    touched = footprints(plan, 4)
    assert traffic(plan, touched, 1 << 30) == touched[0]
    none = traffic(plan, touched, 0)
    assert all(n > t for n, t in zip(none, touched[0]))
    assert touched[-1] == [4, 4, 4]

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.znn.tuner.problems import AVX512, F32, forward, problems, walk
from znn.codegen.nest import Nest
from znn.loops import Schedule, matmul
from znn.tuner.codesize import LOOP, STORE, instructions
from znn.tuner.problem import Problem


def size(contraction, text, packed=None):
    schedule = Schedule.parse(text)
    return instructions(Problem(contraction, schedule, AVX512, F32, packed=packed).plan(schedule), 16)


def test_a_tile_counted_by_hand():
    # in each of 2 blocks of rows, a sum over k of 4 rows by 2 vectors: 8 products, 4 loads of A, 2 of B
    assert size(matmul(8, 32, 5), "m:4, k:1, m:1 unroll, n:1 vector") == 2 * LOOP + 8 + 4 + 2 + STORE * 8


def test_a_shorter_block_is_a_second_copy():
    whole = size(matmul(8, 32, 5), "m:4, k:1, m:1 unroll, n:1 vector")
    rest = size(matmul(2, 32, 5), "k:1, m:1 unroll, n:1 vector")
    assert size(matmul(10, 32, 5), "m:4, k:1, m:1 unroll, n:1 vector") == whole + rest + LOOP


def test_lanes_apart_are_loaded_one_by_one():
    together = size(matmul(4, 16, 5), "m:1, k:1, n:1 vector")
    apart = size(matmul(16, 4, 5), "n:1, k:1, m:1 vector")
    assert apart - together == 15 + 15 * STORE  # of A, and of C


@pytest.mark.parametrize("factor", [2, 4])
def test_unrolling_multiplies(factor):
    c = matmul(8, 16, 64)
    once, more = (size(c, f"m:4, k:{f}, k:1 unroll, m:1 unroll, n:1 vector") for f in (2, 2 * factor))
    fixed = 2 * LOOP + 4 * STORE
    assert more - fixed == factor * (once - fixed)


@given(problems(), st.integers(0, 2**32))
def test_code_that_is_generated_is_not_much_longer(problem, seed):
    """Every line of the intermediate form is an instruction or less."""
    *_, state = walk(problem, random.Random(seed), 6)
    plan = problem.plan(state.schedule)
    text = str(Nest(problem.contraction, state.schedule, problem.target, F32, problem.epilogue, problem.packed).module)
    assert text.count("\n") < 100 + 25 * instructions(plan, problem.lanes)


def test_the_start_of_a_layer_is_short():
    problem = forward(extent=(4, 60, 60), channels=(36, 48))
    assert instructions(problem.plan(problem.start), 16) < 1000

"""Kernels on elements of four integers against the interpreter: sums to the last bit, results to the last rounding."""
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.znn.codegen.kernels import size
from tests.znn.codegen.test_group import run
from tests.znn.codegen.test_target import MACHINE_CODE, assembly, inner_loops
from tests.znn.loops.nests import contractions, schedules
from znn.codegen import target
from znn.codegen.group import U8
from znn.codegen.nest import Nest
from znn.codegen.plan import Epilogue
from znn.loops import IllegalSchedule, Schedule, conv_forward, interpret
from znn.runtime import default
from znn.runtime.quantised import fours


def random_bytes(n, seed, dtype, ends=False):
    """Elements and what they hold, (n, 4) in float64; with `ends`, the least and the largest numbers alone."""
    least, largest = np.iinfo(dtype).min, np.iinfo(dtype).max
    rng = np.random.default_rng(seed)
    drawn = rng.choice([least, largest], (4, n)) if ends else rng.integers(least, largest + 1, (4, n))
    numbers = drawn.astype(dtype)
    return fours(numbers).ravel(), numbers.T.astype(np.float64)


def operands(c, ends=False):
    return random_bytes(size(c.a, c), 0, np.uint8, ends), random_bytes(size(c.b, c), 1, np.int8, ends)


def exact_sums(c, s, a, b, n):
    sums = np.zeros(n)
    for x, w in zip(a.T.copy(), b.T.copy()):
        interpret(c, s, sums, x, w)
    return sums


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_schedule_sums_exactly_on_every_target(data):
    c = data.draw(contractions())
    s = data.draw(schedules(c))
    packed = data.draw(st.sampled_from([None, "before", "inside"]))
    (a, of_a), (b, of_b) = operands(c, data.draw(st.booleans()))
    expected = exact_sums(c, s, of_a, of_b, size(c.out, c))
    for name in target.available():
        found = run(c, s, target.TARGETS[name], U8, a, b, np.zeros(len(expected), np.int32), packed=packed)
        assert np.array_equal(found, expected), name


SMALL = st.integers(1, 3)


@st.composite
def stored_together(draw, together):
    """A convolution, in part or whole, whose results are stored so many channels together."""
    extent = draw(st.tuples(SMALL, SMALL, st.integers(1, 40)))
    first = draw(st.integers(0, extent[2] - 1))
    kernel, columns = draw(st.tuples(SMALL, SMALL, SMALL)), (first, draw(st.integers(first + 1, extent[2])))
    return conv_forward(draw(SMALL), draw(st.integers(1, 4)), together * draw(st.integers(1, 6)), kernel, extent,
                        columns=columns, together=together)


def requantised(c, sums, numbers, zero, activation, stores):
    """What an epilogue makes of sums, each step rounded to float32; NaN where nothing is written."""
    numbers = numbers.reshape(2, -1)
    out = np.full(len(sums), np.nan, np.float32)
    free = [d for d in c.dims if not d.reduction]
    for n in np.ndindex(*(d.extent for d in free)):
        index = dict(zip((d.name for d in free), n))
        at, channel = c.out.address(index), c.bias.address(index)
        value = np.float32(sums[at]) * numbers[1, channel] + numbers[0, channel]
        value = max(value, np.float32(0)) if activation else value
        out[at] = np.clip(np.rint(value + np.float32(zero)), 0, 255) if stores else value
    return out


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_results_are_scaled_rounded_and_stored_alike_on_every_target(data):
    stores = data.draw(st.sampled_from([U8, None]))
    c = data.draw(stored_together(4 if stores else 1))
    zero, activation = data.draw(st.sampled_from([0, 128])) if stores else 0, data.draw(st.sampled_from([None, "relu"]))
    rule = data.draw(st.sampled_from([None, *default.RULES.values()]))
    (a, of_a), (b, of_b) = operands(c)
    channels, rng = size(c.bias, c), np.random.default_rng(2)
    numbers = np.concatenate([rng.normal(0, 50, channels), rng.uniform(1e-4, 4e-3, channels)]).astype(np.float32)
    held = size(c.out, c) + -size(c.out, c) % 4
    for name in target.available():
        where = target.TARGETS[name]
        s = data.draw(schedules(c)) if rule is None else rule(c, where.lanes(U8), where.registers)
        expected = requantised(c, exact_sums(c, s, of_a, of_b, held), numbers, zero, activation, stores)
        untouched = np.full(held // 4, 0x7b7b7b7b, np.uint32) if stores else np.full(held, np.nan, np.float32)
        try:
            epilogue = Epilogue(bias=True, activation=activation, stores=stores, zero=zero)
            out = run(c, s, where, U8, a, b, untouched, epilogue, numbers)
        except IllegalSchedule as error:
            too_wide = rule is default.narrow and c.extents["x"] >= where.lanes(U8)  # it is for what is left of a row
            assert (rule is None or too_wide) and ("cuts a sum" in str(error) or "no place for bias" in str(error))
            continue
        found = out.view(np.uint8) if stores else out
        wanted = np.where(np.isnan(expected), 0x7b, expected).astype(np.uint8) if stores else expected
        assert np.array_equal(found, wanted, equal_nan=not stores), name


def test_rounding_and_saturation_are_those_of_numpy(on_target):
    """One product, whose factor and bias make ties, numbers beyond both ends, and NaN."""
    values = np.float32([-1e9, -0.51, -0.5, 0.49, 0.5, 1.5, 2.5, 254.5, 255.49, 255.5, 1e9, np.inf, -np.inf, np.nan])
    values = np.tile(values, 2)
    n = len(values)
    c = conv_forward(1, 1, n, (1, 1, 1), (1, 1, 5), together=4)
    a, b = fours(np.ones((4, 5), np.uint8)).ravel(), fours(np.ones((4, n), np.int8)).ravel()
    numbers = np.concatenate([values, np.zeros(n, np.float32)])
    s = default.spatial(c, on_target.lanes(U8), on_target.registers)
    out = run(c, s, on_target, U8, a, b, np.zeros(n * 5 // 4, np.uint32), Epilogue(bias=True, stores=U8), numbers)
    found = out.view(np.uint8).reshape(-1, 5, 4)[:, 0].ravel()
    assert np.array_equal(found, np.rint(np.clip(np.nan_to_num(values, posinf=255), 0, 255)))


def test_a_sum_of_integers_is_not_cut_where_it_becomes_float32():
    c = conv_forward(1, 4, 2, (1, 1, 1), (1, 2, 32))
    s = Schedule.parse("ci:2, y:1, ci:1, co:1 unroll, x:1 vector")
    with pytest.raises(IllegalSchedule, match=r"loop ci:2 cuts a sum that is stored as float32.*outside of it"):
        Nest(c, s, target.current(), U8, Epilogue(bias=True))


def test_only_integers_have_another_zero():
    with pytest.raises(ValueError, match="expected zero to be 0 where no integers are stored, found 128"):
        Epilogue(zero=128)


def test_the_processors_instruction_is_used():
    where = target.current()
    if not where.instruction("dot u8", 16):
        pytest.skip("this processor has no instruction for products of integers of eight bits")
    c = conv_forward(1, 6, 12, (1, 3, 3), (1, 4, 64), together=4)
    s = default.spatial(c, 16, where.registers)
    text = assembly(Nest(c, s, where, U8, Epilogue(bias=True, stores=U8), "before").module, where)
    dots = r"vpdpbusd\s.*%zmm"
    assert sum(len(re.findall(dots, loop)) for loop in inner_loops(text)) == len(re.findall(dots, text)) > 0
    assert not re.search(MACHINE_CODE["avx512"][1], text), "an accumulator left its register"

"""Kernels on groups of narrow numbers against the interpreter, and what elements hold."""
import ctypes
import re

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.znn.codegen.kernels import size
from tests.znn.codegen.test_target import MACHINE_CODE, assembly, inner_loops
from tests.znn.loops.nests import contractions, schedules
from znn.codegen import jit, target
from znn.codegen.group import BF16, element
from znn.codegen.nest import Nest
from znn.codegen.plan import PLAIN, Epilogue
from znn.loops import IllegalSchedule, Schedule, conv_forward, interpret, matmul
from znn.runtime import default
from znn.runtime.groups import grouped

F32 = np.dtype(np.float32)


def numbers(elements):
    """Of bf16 elements, (n, 2) in float64."""
    halves = elements.view(np.uint16).astype(np.uint32) << 16
    return halves.view(np.float32).reshape(-1, 2).astype(np.float64)


def random_elements(n, seed):
    return grouped(np.random.default_rng(seed).standard_normal((2, n)), BF16).ravel()


def run(c, s, where, dtype, a, b, out, epilogue=PLAIN, bias=None, packed="before"):
    nest = Nest(c, s, where, dtype, epilogue, packed)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_int64, ctypes.c_int64)(
        jit.link(jit.object_code(nest.module, where), where))
    b = nest.plan.packing.pack(b) if packed == "before" else b
    out = np.tile(out, (nest.plan.copies, 1))
    for first in range(nest.plan.tasks):
        call(*(x.ctypes.data for x in (out, a, b, np.zeros(1, np.float32) if bias is None else bias)), first, first + 1)
    return out.sum(0) if nest.plan.copies > 1 else out[0]


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_schedule_sums_the_products_of_elements(data):
    c = data.draw(contractions())
    s = data.draw(schedules(c))
    where = target.TARGETS[data.draw(st.sampled_from(target.available()))]
    packed = data.draw(st.sampled_from([None, "before", "inside"]))
    a, b = (random_elements(size(t, c), seed) for seed, t in enumerate((c.a, c.b)))
    expected = np.zeros(size(c.out, c))
    for i in range(2):
        interpret(c, s, expected, numbers(a)[:, i], numbers(b)[:, i])
    found = run(c, s, where, BF16, a, b, np.zeros(len(expected), np.float32), packed=packed)
    assert np.allclose(found, expected, rtol=1e-4, atol=1e-4)


SMALL = st.integers(1, 3)


@st.composite
def stored_together(draw):
    """A convolution whose channels are stored in pairs, in part or whole."""
    extent = draw(st.tuples(SMALL, SMALL, st.integers(1, 40)))
    first = draw(st.integers(0, extent[2] - 1))
    kernel, columns = draw(st.tuples(SMALL, SMALL, SMALL)), (first, draw(st.integers(first + 1, extent[2])))
    return conv_forward(draw(SMALL), draw(st.integers(1, 4)), 2 * draw(st.integers(1, 9)), kernel, extent,
                        columns=columns, together=2)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_results_are_rounded_and_stored_in_pairs(data):
    c, dtype = data.draw(stored_together()), data.draw(st.sampled_from([BF16, F32]))
    where = target.TARGETS[data.draw(st.sampled_from(target.available()))]
    rule = data.draw(st.sampled_from([None, *default.RULES.values()]))
    s = data.draw(schedules(c)) if rule is None else rule(c, where.lanes(dtype), where.registers)
    rng = np.random.default_rng(0)
    if dtype is BF16:
        a, b = (random_elements(size(t, c), seed) for seed, t in enumerate((c.a, c.b)))
        a_parts, b_parts = (list(numbers(t).T) for t in (a, b))
    else:
        a, b = (rng.standard_normal(size(t, c)).astype(np.float32) for t in (c.a, c.b))
        a_parts, b_parts = [a.astype(float)], [b.astype(float)]
    bias = rng.standard_normal(c.extents["co"] * 2).astype(np.float32)
    held = size(c.out, c) + size(c.out, c) % 2
    sums = np.zeros(held)
    for x, y in zip(a_parts, b_parts):
        interpret(c, s, sums, x, y)
    expected = np.full(held, np.nan)
    for n in np.ndindex(*(d.extent for d in c.dims if not d.reduction)):
        index = dict(zip((d.name for d in c.dims if not d.reduction), n))
        at = c.out.address(index)
        expected[at] = max(0, sums[at] + bias[c.bias.address(index)])
    untouched = np.full(held // 2, 0x7fc17fc1, np.uint32)
    try:
        out = run(c, s, where, dtype, a, b, untouched, Epilogue(bias=True, activation="relu", stores=BF16), bias)
    except IllegalSchedule as error:
        too_wide = rule is default.narrow and c.extents["x"] >= where.lanes(dtype)  # it is for what is left of a row
        assert (rule is None or too_wide) and ("cuts a sum" in str(error) or "no place for bias" in str(error))
        return
    found = numbers(out.view(np.uint32)).ravel()
    assert np.array_equal(np.isnan(found), np.isnan(expected)), "not all is written, or more than is to be"
    assert np.allclose(found, expected, rtol=2**-8, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("values", [
    [1, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20], [-1 - 2**-8, 3e38, -3.4e38, 0],
    [np.inf, -np.inf, -0.0, 2.**-126]], ids=str)
def test_elements_hold_what_torch_rounds_to(values):
    x = np.array([values, values[::-1]], np.float32)
    found = numbers(grouped(x, BF16).ravel()).T
    assert np.array_equal(found, torch.from_numpy(x).bfloat16().double().numpy())


def test_missing_channels_are_zero_and_nan_is_positive():
    assert np.array_equal(grouped(np.float32([[1], [2], [-3]]), BF16).ravel(), np.uint32([0x40003f80, 0x0000c040]))
    assert grouped(np.uint32([[0xff800001], [0xffc00000]]).view(np.float32), BF16).item() == 0x7fc07fc0


@pytest.mark.parametrize("name", target.available())
def test_kernels_round_as_numbers_are_grouped(name):
    """The identity, whose sums are the very numbers: ties, infinities, NaN."""
    where = target.TARGETS[name]
    x = np.float32([1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, np.inf, -np.inf, np.nan, -np.nan, 1 / 3] * 4)
    c = conv_forward(1, 1, 2, (1, 1, 1), (1, 1, 32), together=2)
    w = np.float32([1, -1])
    out = run(c, default.spatial(c, where.lanes(F32), where.registers), where, F32, x, w, np.zeros(32, np.uint32),
              Epilogue(stores=BF16))
    assert np.array_equal(out, grouped(np.stack([x, -x]), BF16)[0])


def test_a_sum_that_is_stored_narrowly_is_neither_cut_nor_added_to():
    c = conv_forward(1, 4, 2, (1, 1, 1), (1, 2, 32), together=2)
    s = Schedule.parse("ci:2, y:1, ci:1, c:1 unroll, x:1 vector")
    with pytest.raises(IllegalSchedule, match=r"loop ci:2 cuts a sum that is stored as bf16.*outside of it"):
        Nest(c, s, target.current(), BF16, Epilogue(stores=BF16))
    with pytest.raises(ValueError, match="stored as bf16 cannot be added to"):
        Epilogue(accumulate=True, stores=BF16)


def test_an_element_type_is_known_by_its_name():
    assert element("bf16") is element(BF16) is BF16 and element("float32") == element(np.float32) == F32


def test_the_processors_instruction_is_used():
    where = target.current()
    if not where.instruction("dot bf16", 16):
        pytest.skip("this processor has no instruction for products of bf16")
    c = conv_forward(1, 8, 6, (1, 3, 3), (1, 4, 64), together=2)
    s = default.spatial(c, 16, where.registers)
    text = assembly(Nest(c, s, where, BF16, Epilogue(stores=BF16), "before").module, where)
    dots = r"vdpbf16ps\s.*%zmm"
    assert sum(len(re.findall(dots, loop)) for loop in inner_loops(text)) == len(re.findall(dots, text)) > 0
    assert not re.search(MACHINE_CODE["avx512"][1], text), "an accumulator left its register"


def test_without_the_instruction_numbers_are_widened(monkeypatch):
    monkeypatch.setattr(target, "_features", dict)
    c = matmul(3, 32, 5)
    where = target.TARGETS["avx512"]
    assert where.instruction("dot bf16", 16) is None
    assert "bf16" not in str(Nest(c, Schedule.parse("m:1, k:1, n:1 vector"), where, BF16).module)

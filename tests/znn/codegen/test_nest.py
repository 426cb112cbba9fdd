"""Generated kernels against the interpreter."""
import ctypes
import mmap
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.znn.codegen.kernels import F64, generated, operands
from tests.znn.loops.nests import contractions, schedules
from znn.codegen import target
from znn.codegen.nest import Nest
from znn.codegen.plan import Epilogue
from znn.loops import IllegalSchedule, Schedule, conv_forward, interpret, matmul
from znn.loops.layout import Packing


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_legal_schedule_computes_the_contraction(data):
    c = data.draw(contractions())
    s = data.draw(schedules(c))
    where = target.TARGETS[data.draw(st.sampled_from(target.available()))]
    a, b, out = operands(c, data.draw(st.integers(0, 9)))
    packed = data.draw(st.sampled_from([None, "before", "inside"]))
    expected = interpret(c, s, np.zeros_like(out), a, b)
    found = generated(c, s, a, b, np.zeros_like(out), where, packed)
    assert np.allclose(found, expected, atol=1e-12)


CONV = conv_forward(1, 3, 5, (1, 2, 3), (2, 5, 21), (1, 2, 2))


def test_a_parallel_sum_has_no_epilogue():
    s = Schedule.parse("k:2 parallel, m:1, n:1, k:1")
    with pytest.raises(IllegalSchedule, match="split over parallel tasks has no place for bias"):
        Nest(matmul(3, 3, 4), s, target.current(), F64, Epilogue(activation="relu"))


def test_packed_weights_lie_in_the_order_of_the_schedule():
    s = Schedule.parse("z:1, y:1, co:2, ci:1, ky:1, kx:1 unroll, co:1 unroll, x:1 vector")
    packing = Packing(CONV, s, CONV.b)
    w = np.arange(5 * 3 * 2 * 3).reshape(5, 3, 1, 2, 3)
    packed = packing.pack(w).reshape(3, 3, 2, 3, 2)  # block of co, ci, ky, kx, co in the block
    assert np.array_equal(packed[1, 2, 0, 1], w[2:4, 2, 0, 0, 1])
    assert np.array_equal(packed[2, 0, 1, 2], [w[4, 0, 0, 1, 2], 0])


def test_a_tile_too_large_for_the_registers_is_looped_over():
    c = matmul(40, 64, 3)
    s = Schedule.parse("k:1, m:1 unroll, n:1 vector")
    a, b, out = operands(c, 3)
    found = generated(c, s, a, b, np.zeros_like(out), target.current())
    assert np.allclose(found, interpret(c, s, np.zeros_like(out), a, b), atol=1e-12)


@pytest.mark.parametrize("c, text", [
    (matmul(2, 1000, 3), "m:1, k:1, n:1 vector"),
    (matmul(2, 3, 1000), "m:1, n:1, k:1 vector"),
    (matmul(2, 9, 3), "m:1, k:4, k:1, n:1 vector"),
], ids=["columns", "sum", "block larger than the sum"])
@pytest.mark.parametrize("packed", [None, "before", "inside"], ids=str)
def test_loops_longer_than_the_registers_and_shorter_than_their_block(c, text, packed):
    s, (a, b, out) = Schedule.parse(text), operands(c, 3)
    for name in target.available():
        found = generated(c, s, a, b, np.zeros_like(out), target.TARGETS[name], packed)
        assert np.allclose(found, interpret(c, s, np.zeros_like(out), a, b), atol=1e-11), name


def test_a_kernel_packs_no_more_than_its_stack_holds():
    s = Schedule.parse("m:1, k:1, n:1 vector")
    with pytest.raises(IllegalSchedule, match="would pack 896000 bytes of B at once, at most 524288 are"):
        Nest(matmul(2, 100, 1000), s, target.TARGETS["generic"], F64, packed="inside")


def test_private_copies_that_a_short_block_leaves_out_are_zero():
    c = matmul(3, 17, 61)
    s = Schedule.parse("k:4 parallel, k:1 parallel, m:1, n:1 vector")
    a, b, out = operands(c, 0)
    found = generated(c, s, a, b, out, target.TARGETS["generic"])  # copies hold NaN before
    np.testing.assert_allclose(found.reshape(3, 17), a.reshape(3, 61) @ b.reshape(61, 17), atol=1e-12)


def test_private_copies_that_a_short_block_leaves_out_read_nothing_beyond_the_operands():
    c = matmul(3, 17, 61)
    s = Schedule.parse("k:4 parallel, k:2 parallel, m:1, k:1, n:1 vector")
    a, b, out = operands(c, 0)
    child = os.fork()
    if not child:  # a fault must not end the tests
        found = generated(c, s, a, before_a_wall(b), out, target.TARGETS["generic"], "inside")
        os._exit(not np.allclose(found.reshape(3, 17), a.reshape(3, 61) @ b.reshape(61, 17), atol=1e-12))
    assert os.waitpid(child, 0)[1] == 0


def before_a_wall(array):
    """A copy that ends where memory may not be read any more."""
    pages = -(-array.nbytes // mmap.PAGESIZE)
    memory = np.frombuffer(mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE), np.uint8)
    wall = memory.ctypes.data + pages * mmap.PAGESIZE
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(wall), mmap.PAGESIZE, 0) == 0
    out = memory[pages * mmap.PAGESIZE - array.nbytes:][:array.nbytes].view(array.dtype)
    out[:] = array
    return out

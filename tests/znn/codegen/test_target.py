"""Which processor kernels are generated for, and what they become on it."""
import dataclasses
import re
from concurrent.futures import ThreadPoolExecutor

import llvmlite.binding as llvm
import numpy as np
import pytest

from znn.codegen import jit, target
from znn.codegen.nest import Nest
from znn.loops import Schedule, conv_forward, matmul
from znn.runtime import default


def test_generic_always_runs_and_an_unknown_target_is_refused(monkeypatch):
    assert target.available()[-1] == "generic"
    with pytest.raises(ValueError, match=r"cannot run here: this processor offers .*generic"):
        with target.use_target("sse9"):
            pass
    monkeypatch.setenv("ZNN_TARGET", "generic")
    assert target.current().name == "generic"


@pytest.mark.parametrize("where", target.TARGETS.values(), ids=lambda t: t.name)
def test_kernels_are_valid_ir_for_every_target(where):
    module = Nest(matmul(5, 21, 3), Schedule.parse("m:1, k:1, n:1 vector"), where, np.dtype(np.float32)).module
    llvm.parse_assembly(str(module)).verify()
    assert f"<{where.bits // 32} x float>" in str(module)


def test_another_thread_keeps_its_target():
    before = target.current()
    with ThreadPoolExecutor(1) as pool, target.use_target("generic"):
        assert target.current().name == "generic"
        assert pool.submit(target.current).result() == before
    assert target.current() == before


# a multiplication of whole registers, and an access to the stack with one
MACHINE_CODE = {"avx512": (r"vfmadd\w+ps\s.*%zmm", r"vmov\w+\s.*\(%rsp\)"),
                "avx2": (r"vfmadd\w+ps\s.*%ymm", r"vmov\w+\s.*\(%rsp\)"),
                "neon": (r"fmla\s+v\d+\.4s", r"\s(ld|st)\w+\s+q.*\[sp\b")}


def assembly(module, where):
    try:
        return jit.assembly(module, where)
    except RuntimeError as error:
        pytest.skip(f"LLVM cannot write assembly for {where.name}: {error}")


def inner_loops(text):
    """The blocks that end with a branch to their own beginning."""
    blocks = re.findall(r"^(\.LBB\w+):(.*?)(?=^\.LBB|\Z)", text, re.M | re.S)
    return [body for label, body in blocks if re.search(rf"\s(j|b)[\w.]+\s+{re.escape(label)}$", body, re.M)]


@pytest.mark.parametrize("name", MACHINE_CODE)
def test_the_inner_loop_multiplies_in_registers(name):
    where, (multiply, spill) = target.TARGETS[name], MACHINE_CODE[name]
    c = conv_forward(1, 8, 6, (1, 3, 3), (1, 4, 2 * where.bits // 32))
    s = Schedule.parse("y:1 parallel, ci:1, ky:1, kx:1 unroll, co:1 unroll, x:1 vector")
    text = assembly(Nest(c, s, where, np.dtype(np.float32)).module, where)
    assert [len(re.findall(multiply, loop)) for loop in inner_loops(text)] == [3 * 6 * 2]
    assert not re.search(spill, text), "an accumulator left its register"


@pytest.mark.parametrize("ci, co, kernel, dilation", [
    (36, 36, (1, 3, 3), (1, 2, 2)), (48, 60, (2, 3, 3), (1, 8, 8)), (100, 2, (1, 1, 1), (1, 1, 1))], ids=str)
def test_default_schedules_keep_their_sums_in_the_registers_of_neon(ci, co, kernel, dilation):
    where, f32 = target.TARGETS["neon"], np.dtype(np.float32)
    c = conv_forward(1, ci, co, kernel, (1, 4, 96), dilation)
    s = default.spatial(c, where.lanes(f32), where.registers)
    text = assembly(Nest(c, s, where, f32, packed="before").module, where)
    multiply, spill = MACHINE_CODE["neon"]
    assert sum(len(re.findall(multiply, loop)) for loop in inner_loops(text)) == len(re.findall(multiply, text)) > 0
    assert not re.search(spill, text)


def test_a_register_too_few_shows():
    """The check itself: a tile for 64 registers does not fit the 32 of NEON."""
    where = dataclasses.replace(target.TARGETS["neon"], registers=64)
    c = conv_forward(1, 8, 12, (1, 3, 3), (1, 4, 16))
    s = Schedule.parse("y:1 parallel, ci:1, ky:1, kx:1 unroll, co:1 unroll, x:1 vector")
    assert re.search(MACHINE_CODE["neon"][1], assembly(Nest(c, s, where, np.dtype(np.float32)).module, where))

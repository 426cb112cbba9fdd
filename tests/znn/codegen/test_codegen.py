"""Targets and the code they lead to."""
import re

import llvmlite.binding as llvm
import numpy as np
import pytest

from znn.codegen import conv, jit, target

F32 = np.dtype(np.float32)


def test_generic_always_runs_and_an_unknown_target_is_refused(monkeypatch):
    assert target.available()[-1] == "generic"
    with pytest.raises(ValueError, match=r"cannot run here: this processor offers .*generic"):
        with target.use_target("sse9"):
            pass
    monkeypatch.setenv("ZNN_TARGET", "generic")
    assert target.current().name == "generic"


@pytest.mark.parametrize("name, multiply", [("avx512", r"vfmadd\w+ps.*%zmm"), ("avx2", r"vfmadd\w+ps.*%ymm")])
def test_inner_loop_multiplies_in_registers(name, multiply):
    if name not in target.available():
        pytest.skip(f"this processor has no {name}")
    t = target.TARGETS[name]
    text = jit.assembly(conv.spatial_tile(t, F32, 6, 2, 3, 1, True, False), t)
    assert len(re.findall(multiply, text)) == 6 * 2 * 3
    assert not re.search(r"(vmovaps|vmovups)\s.*\(%rsp\)", text), "an accumulator left its register"


def test_kernels_are_valid_ir_for_every_target():
    for t in target.TARGETS.values():
        for module in (conv.spatial_tile(t, F32, 3, 2, 2, 4, False, True), conv.weight_tile(t, F32, 2, 3)):
            llvm.parse_assembly(str(module)).verify()
        assert f"<{t.bits // 32} x float>" in str(module)

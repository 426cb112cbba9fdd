"""Which processor kernels are generated for."""
from concurrent.futures import ThreadPoolExecutor

import llvmlite.binding as llvm
import numpy as np
import pytest

from znn.codegen import target
from znn.codegen.nest import Nest
from znn.loops import Schedule, matmul


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

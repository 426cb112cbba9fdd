"""Machine code kept between runs."""
import multiprocessing
import os

import numpy as np
import pytest

from znn.codegen import jit, target
from znn.codegen.plan import PLAIN
from znn.loops import Schedule, matmul
from znn.runtime import cache, driver
from znn.runtime.kernel import Kernel

SCHEDULE = Schedule.parse("m:1 parallel, k:1, n:1 vector")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("ZNN_KERNEL_CACHE", raising=False)


def product(n=5):
    a, b, c = np.eye(3), np.arange(3.0 * n).reshape(3, n), np.empty((3, n))
    kernel = Kernel(matmul(3, n, 3), SCHEDULE, target.current(), np.dtype(float), PLAIN, None)
    driver.run([kernel.piece(c, a, b)])
    assert np.array_equal(c, b)


def test_second_time_nothing_is_compiled(monkeypatch):
    product()
    assert len(list(cache.folder().iterdir())) == 1
    monkeypatch.setattr(jit, "object_code", lambda *_: pytest.fail("compiled again"))
    product()


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:-5], lambda b: b[:40] + b"\0" * (len(b) - 40)])
def test_damaged_entries_are_replaced(damage):
    product()
    entry, = cache.folder().iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(damage(whole))
    product()
    assert entry.read_bytes() == whole


def test_a_folder_that_others_can_write_to_is_not_trusted():
    product()
    cache.folder().chmod(0o777)
    entry, = cache.folder().iterdir()
    assert cache.load(entry.name) is None
    product(6)
    assert len(list(cache.folder().iterdir())) == 1


def test_it_works_without_a_folder(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    product()
    monkeypatch.setenv("ZNN_KERNEL_CACHE", "0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    product()
    assert not cache.folder().exists()


def test_keys_differ_with_what_is_compiled():
    assert len({cache.key("a"), cache.key("b"), cache.key("a", "b")}) == 3


def test_processes_may_share_it():
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=product) for _ in range(2)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert [w.exitcode for w in workers] == [0, 0]
    assert [len(name) for name in os.listdir(cache.folder())] == [64]

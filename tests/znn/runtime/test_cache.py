"""Machine code kept between runs."""
import errno
import multiprocessing
import os
import resource
import tempfile
from pathlib import Path

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


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:20], lambda b: b[:-5], lambda b: b + b"more",
                                    lambda b: b[:40] + b"\0" * (len(b) - 40), lambda b: b[::-1]])
def test_damaged_entries_are_replaced(damage):
    product()
    entry, = cache.folder().iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(damage(whole))
    product()
    assert entry.read_bytes() == whole


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_folder_that_others_can_write_to_is_not_trusted(mode):
    product()
    cache.folder().chmod(mode)
    entry, = cache.folder().iterdir()
    assert cache.load(entry.name) is None
    product(6)
    assert len(list(cache.folder().iterdir())) == 1


def test_a_folder_of_somebody_else_is_not_trusted(monkeypatch):
    product()
    entry, = cache.folder().iterdir()
    monkeypatch.setattr(os, "getuid", lambda: cache.folder().stat().st_uid + 1)
    assert cache.load(entry.name) is None
    cache.store("0" * 64, b"code")
    assert list(cache.folder().iterdir()) == [entry]


def test_a_link_is_as_good_as_the_folder_it_leads_to(tmp_path):
    home = tmp_path / "elsewhere"
    home.mkdir(mode=0o700)
    cache.folder().parent.mkdir(parents=True)
    cache.folder().symlink_to(home)
    cache.store("name", b"code")
    assert cache.load("name") == b"code" and (home / "name").is_file()
    home.chmod(0o777)
    assert cache.load("name") is None


def test_entries_that_are_links_or_folders_harm_nothing(tmp_path):
    """Digests decide what is read; a new entry takes the place of a link, not of what the link leads to."""
    other = tmp_path / "other"
    other.write_bytes(b"precious")
    cache.store("first", b"code")
    (cache.folder() / "link").symlink_to(other)
    (cache.folder() / "folder").mkdir()
    for name in ("link", "folder"):
        assert cache.load(name) is None
        cache.store(name, b"code")
    assert cache.load("link") == b"code" and other.read_bytes() == b"precious"
    assert cache.load("folder") is None
    assert sorted(os.listdir(cache.folder())) == ["first", "folder", "link"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_read():
    product()
    entry, = cache.folder().iterdir()
    cache.folder().chmod(0o500)
    try:
        assert cache.load(entry.name)
        product(6)
        assert list(cache.folder().iterdir()) == [entry]
    finally:
        cache.folder().chmod(0o700)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("failing", ["mkdir", "mkstemp", "replace"])
def test_what_cannot_be_kept_is_left(failing, error, monkeypatch):
    def fail(*_, **__):
        raise OSError(error, os.strerror(error))

    cache.store("before", b"code")
    owner = {"mkdir": Path, "mkstemp": tempfile, "replace": os}[failing]
    with monkeypatch.context() as patch:
        patch.setattr(owner, failing, fail)
        cache.store("after", b"code")
    assert os.listdir(cache.folder()) == ["before"]


def test_a_disk_that_fills_up_while_an_entry_is_written():
    cache.store("before", b"code")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        cache.store("after", bytes(1 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(cache.folder()) == ["before"]


def test_without_a_variable_entries_are_in_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for unset in (lambda: monkeypatch.setenv("XDG_CACHE_HOME", ""), lambda: monkeypatch.delenv("XDG_CACHE_HOME")):
        unset()
        assert cache.folder() == tmp_path / ".cache" / "znn" / "kernels"


def test_it_works_without_a_home(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    product()


def test_it_works_without_a_folder(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    product()
    monkeypatch.setenv("ZNN_KERNEL_CACHE", "0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    product()
    assert not cache.folder().exists()


def test_an_entry_under_another_name_is_not_taken():
    cache.store("one", b"code")
    (cache.folder() / "one").rename(cache.folder() / "two")
    assert cache.load("two") is None


def test_keys_differ_with_what_is_compiled():
    assert len({cache.key("a"), cache.key("b"), cache.key("a", "b")}) == 3


def store_again(start, name, code):
    """In turn store an entry and read it, which another process replaces all the time."""
    start.wait()
    for _ in range(300):
        cache.store(name, code)
        assert cache.load(name) == code


def product_at_once(start):
    start.wait()
    product()


def statuses(target, *arguments):
    """Exit statuses of two processes that start on `target` at the same time."""
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(2)
    workers = [context.Process(target=target, args=(start, *arguments)) for _ in range(2)]
    for w in workers:
        w.start()
    for w in workers:
        w.join(120)
        w.kill()
    return [w.exitcode for w in workers]


def test_processes_may_share_it():
    assert statuses(product_at_once) == [0, 0]
    assert [len(name) for name in os.listdir(cache.folder())] == [64]


def test_processes_may_store_the_same_entry_at_once():
    assert statuses(store_again, "name", bytes(range(256)) * 1000) == [0, 0]
    assert os.listdir(cache.folder()) == ["name"]

"""Several Python threads, forked and spawned processes, on each of numba's threading layers.

A layer is chosen once in a process, and a wrong use ends or hangs it: every case is a script with a time limit.
"""
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LIMIT = 300  # seconds: compiling in a new environment included
ABSENT = 77  # exit status of a script whose layer cannot be loaded

SETUP = """
import multiprocessing, os, sys, threading, warnings
import numba
import numpy as np
try:
    numba.get_num_threads()
except ValueError:
    sys.exit(77)
from znn.runtime import conv, dropout, pool, threads

rng = np.random.default_rng(0)
x = rng.standard_normal((2, 3, 4, 20, 37)).astype(np.float32)
w = rng.standard_normal((5, 3, 2, 3, 3)).astype(np.float32)
bias = rng.standard_normal(5).astype(np.float32)


def results():
    y = conv.forward(x, w, bias, (1, 2, 1), "relu")
    top, places = pool.max_filter_with_places(y, (1, 2, 2), (1, 1, 1))
    return [a.tobytes() for a in (y, *conv.backward(x, w, y, y, (1, 2, 1), "relu"), dropout.dropout(top, 3, 0.5),
                                  pool.max_filter_gradient(y.shape, places, top, (1, 2, 2), (1, 1, 1)))]


def child(expected, times=3):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        same = all(results() == expected for _ in range(times))
    told = [str(c.message) for c in caught if "spawn" in str(c.message)]
    sys.exit(0 if same and len(told) == threads._forked_from_openmp else 1)


def run(method, expected):
    process = multiprocessing.get_context(method).Process(target=child, args=(expected,))
    process.start()
    process.join(200)
    assert process.exitcode == 0, process.exitcode


def from_threads(work, many=8):
    failed = []

    def guarded():
        try:
            work()
        except BaseException as error:
            failed.append(error)

    workers = [threading.Thread(target=guarded, daemon=True) for _ in range(many)]
    for t in workers:
        t.start()
    for t in workers:
        t.join(200)
    assert not failed and not any(t.is_alive() for t in workers), failed


def same(expected, times=30):
    for _ in range(times):
        assert results() == expected
"""


def python(code, tmp_path, layer="default", **environment):
    """Run a script after SETUP in a process of its own; skips the test where the layer is not to be had."""
    script = tmp_path / "script.py"
    script.write_text(SETUP + "\n\nif __name__ == '__main__':\n" + textwrap.indent(textwrap.dedent(code), "    "))
    own = {"NUMBA_THREADING_LAYER": layer, "NUMBA_NUM_THREADS": "4", "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run([sys.executable, "-X", "faulthandler", script], env={**os.environ, **own}, timeout=LIMIT,
                          capture_output=True, text=True)
    if done.returncode == ABSENT:
        pytest.skip(f"numba's threading layer {layer} is not installed")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(params=["omp", "workqueue", "tbb"])
def layer(request):
    return request.param


def test_threads_get_what_one_alone_gets(layer, tmp_path):
    python("""
        expected = results()
        from_threads(lambda: same(expected))
        """, tmp_path, layer)


def test_first_calls_may_come_at_once(layer, tmp_path):
    """Nothing is compiled yet when the threads start: neither kernels nor, with an empty cache, numba functions."""
    found = python("""
        import gc
        from znn.codegen import jit
        compiled, made = [], jit.object_code
        jit.object_code = lambda module, target: compiled.append(str(module)) or made(module, target)
        found = []
        from_threads(lambda: found.append(tuple(results())))
        assert len(found) == 8 and len(set(found)) == 1
        assert gc.isenabled()
        assert compiled and len(set(compiled)) == len(compiled)
        """, tmp_path, layer, ZNN_KERNEL_CACHE="0")
    assert not found


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_get_what_their_parent_got(layer, method, tmp_path):
    python(f"""
        expected = results()
        run("{method}", expected)
        same(expected, 3)
        """, tmp_path, layer)


def test_fork_while_threads_compute(layer, tmp_path):
    python("""
        expected, done = results(), threading.Event()
        worker = threading.Thread(target=lambda: [same(expected, 1) for _ in iter(done.is_set, True)], daemon=True)
        worker.start()
        try:
            for _ in range(5):
                run("fork", expected)
        finally:
            done.set()
        worker.join(200)
        assert not worker.is_alive()
        """, tmp_path, layer)


def test_a_worker_of_torchs_loader_computes(layer, tmp_path):
    python("""
        import torch

        class Results(torch.utils.data.Dataset):
            def __len__(self):
                return 4

            def __getitem__(self, i):
                return results()

        expected = results()
        loader = torch.utils.data.DataLoader(Results(), batch_size=None, num_workers=2, multiprocessing_context="fork",
                                             timeout=200)
        assert all(r == expected for r in loader)
        """, tmp_path, layer)


def test_bits_do_not_depend_on_the_number_of_threads(layer, tmp_path):
    python("""
        found = set()
        for n in (1, 2, 3, 4):
            numba.set_num_threads(n)
            found.add(tuple(results()))
        assert len(found) == 1
        """, tmp_path, layer)


def test_as_many_threads_as_numba_is_set_to(layer, tmp_path):
    """Counted by the tasks themselves: each notes which of numba's threads ran it."""
    python("""
        @threads.parallel(cache=False)
        def who(out):
            for i in numba.prange(len(out)):
                out[i] = numba.get_thread_id()

        def used():
            out = np.full(1000, -1)
            who(out)
            return set(out)

        assert numba.config.NUMBA_NUM_THREADS == 4 and numba.get_num_threads() == 4
        assert used() <= {0, 1, 2, 3} and (len(used()) == 4 or numba.threading_layer() == "tbb")
        for n in (1, 2):
            numba.set_num_threads(n)
            assert len(used()) <= n
        before = numba.get_num_threads()
        results()
        assert numba.get_num_threads() == before
        """, tmp_path, layer, OMP_NUM_THREADS="1")


def test_the_numba_cache_keeps_both_forms(tmp_path):
    """A second process compiles nothing, neither in parallel nor, in a forked child, serially."""
    code = """
        from numba.core.event import install_listener, Listener

        class Count(Listener):
            seen = 0
            def on_start(self, event):
                Count.seen += 1
            def on_end(self, event):
                pass

        def compiled():
            with install_listener("numba:compile", Count()):
                results()
            return Count.seen

        print(compiled(), flush=True)
        process = multiprocessing.get_context("fork").Process(target=lambda: print(compiled(), flush=True))
        process.start()
        process.join(200)
        assert process.exitcode == 0
        """
    where = {"layer": "omp", "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONWARNINGS": "ignore"}
    first, second = python(code, tmp_path, **where).split(), python(code, tmp_path, **where).split()
    assert all(int(n) > 0 for n in first)
    assert second == ["0", "0"]

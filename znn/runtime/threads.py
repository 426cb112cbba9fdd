"""Parallel functions that may be called from any thread, in any process.

numba's threading layers (``NUMBA_THREADING_LAYER``) differ in what they bear; `parallel` makes up for it:

=========  ========================================  ===================================================
layer      called from several Python threads        in a forked child
=========  ========================================  ===================================================
tbb        safe                                      safe
omp        safe; workers for each calling thread     GNU's ends the process: the child runs serially
workqueue  ends the process: calls take turns        safe, since no call is under way when a fork happens
=========  ========================================  ===================================================

Only calls of functions made here take turns: on workqueue, other parallel numba functions must not run meanwhile.

A call uses ``numba.get_num_threads()`` threads: ``NUMBA_NUM_THREADS``, else one for each processor that the process may
use, unless ``numba.set_num_threads`` chose fewer.  That choice counts for the Python thread that makes it.
``OMP_NUM_THREADS`` sets torch's threads, not numba's.  Where several Python threads compute at the same time, give each
its share of the processors by ``numba.set_num_threads``: one thread each is best, for nobody waits for anybody.
"""
import contextlib
import functools
import os
import threading
import types
import warnings

import numba
from numba import njit


def parallel(*arguments, **options):
    """Like ``numba.njit(parallel=True, nogil=True, cache=True)``, safe from several threads and after a fork.

    Used bare or with what njit takes: a signature to compile for at once, options such as ``fastmath``.

    Returns
    -------
    callable
        To be called from Python, not from other numba functions.

    Warns
    -----
    RuntimeWarning
        When called for the first time in a forked child that has to run serially.
    """
    if arguments and callable(arguments[0]):
        return parallel()(*arguments)
    options = {"nogil": True, "cache": True, **options}

    def decorate(function):
        launch = njit(*arguments, parallel=True, **options)(function)
        serial = njit(**options)(_renamed(function, "_serial"))  # compiled by the first process that needs it

        @functools.wraps(function)
        def call(*operands):
            if _forked_from_openmp:
                _warn_once()
                return serial(*operands)
            with _turn:
                return launch(*operands)

        return call

    return decorate


def survive_fork(lock):
    """No forked child finds `lock` held by a thread that it does not have; returns the lock."""
    os.register_at_fork(before=lock.acquire, after_in_child=lock.release, after_in_parent=lock.release)
    return lock


def _renamed(function, suffix):
    """The same function under another name: numba's cache tells functions by name, not by options."""
    copy = types.FunctionType(function.__code__, function.__globals__, function.__name__ + suffix,
                              function.__defaults__, function.__closure__)
    copy.__qualname__ = function.__qualname__ + suffix
    return copy


@functools.cache
def _warn_once():
    warnings.warn("this process was forked from one that had started GNU OpenMP, which does not work in the child: "
                  "ZNN runs on one thread here. Start processes with multiprocessing's 'spawn' method (for torch, "
                  "DataLoader(..., multiprocessing_context='spawn')), or set NUMBA_THREADING_LAYER=workqueue",
                  RuntimeWarning, stacklevel=3)


def _gnu_openmp():
    """Whether numba's threads are GNU OpenMP's, whose workers a forked child would wait for for ever."""
    if numba.threading_layer() != "omp":
        return False
    from numba.np.ufunc import omppool  # only exists where the layer does
    return omppool.openmp_vendor == "GNU"


def _after_fork():
    global _forked_from_openmp
    _forked_from_openmp = _gnu_openmp()


numba.get_num_threads()  # starts the layer, which stays the same from then on
_forked_from_openmp = False
# A signal handler may come between a launch and the end of its turn, and launch in its own right: reentrant.
_turn = survive_fork(threading.RLock()) if numba.threading_layer() == "workqueue" else contextlib.nullcontext()
os.register_at_fork(after_in_child=_after_fork)

"""Keeping threads on their processors while kernels are timed, where the platform has the means (Linux).

A thread that moves between two runs leaves its caches behind.  Each is kept where the system has put it: it chose among
the processors that the user allows, and knows which of them share a core.
"""
import contextlib
import os
import time
from pathlib import Path

TASKS = Path("/proc/self/task")
BUSY = 0.5         # part of the longest time that any thread computed, from which on one counts as computing
TRIES = 4          # for two threads may be on one processor at first
PROCESSOR = 36     # field of a thread's stat, counted from behind its name


@contextlib.contextmanager
def pinned(run, threads):
    """Within the block, each of the `threads` threads that ``run()`` computes on stays on its processor.

    Yields
    ------
    dict of int to int
        Processor by thread; empty where threads cannot be pinned, or do not have a processor each.
    """
    places = _places(run, threads)
    before = {}
    try:
        for thread, processor in places.items():
            before[thread] = os.sched_getaffinity(thread)
            os.sched_setaffinity(thread, {processor})
        yield places
    finally:
        for thread, allowed in before.items():
            with contextlib.suppress(OSError):  # it may have ended
                os.sched_setaffinity(thread, allowed)


def _places(run, threads):
    for _ in range(TRIES if hasattr(os, "sched_setaffinity") else 0):
        with contextlib.suppress(OSError, ValueError, IndexError):  # no such files, or no such clock
            before = _computed()
            run()
            spent = {thread: seconds - before.get(thread, 0) for thread, seconds in _computed().items()}
            busy = [thread for thread, seconds in spent.items() if seconds > BUSY * max(spent.values())]
            places = {thread: _processor(thread) for thread in busy}
            if len(places) == len(set(places.values())) == threads:
                return places
    return {}


def _computed():
    """Seconds that each thread of this process has computed."""
    return {thread: time.clock_gettime(~thread << 3 | 6) for thread in map(int, os.listdir(TASKS))}  # Linux's clock ids


def _processor(thread):
    """The processor that a thread ran on last."""
    return int((TASKS / str(thread) / "stat").read_text().rpartition(")")[2].split()[PROCESSOR])

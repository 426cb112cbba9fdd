"""Measuring: contestants in turn, medians, and what the processor can do at best in the same run."""
import json
import statistics
import time
from pathlib import Path

import numba
import numpy as np
import torch
from numba import njit, prange

from znn.codegen import jit, target

NETWORKS = {"N4": ("N4", {}), "VD2D": ("VD2D", {}), "VD2D3D": ("VD2D3D", {"recursive": True})}


def in_turn(contestants, rounds, warm=True):
    """Seconds that each contestant takes in each round: all take turns, in each turn one call to warm the caches and
    one that is measured.

    Parameters
    ----------
    contestants : dict of str to callable
    rounds : int
    warm : bool
        False leaves the first of the two calls away: for calls so long that they warm the caches themselves.

    Returns
    -------
    dict of str to list of float
    """
    seconds = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            if warm:
                call()
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def median(seconds):
    """Medians of what `in_turn` found."""
    return {name: statistics.median(s) for name, s in seconds.items()}


def extent(text):
    """(z, y, x) from "ZxYxX", for argparse."""
    z, y, x = map(int, text.split("x"))
    return z, y, x


def use_threads(count):
    """Let both engines use so many threads."""
    torch.set_num_threads(count)
    numba.set_num_threads(count)


def copying(nbytes):
    """A function that copies so that `nbytes` are read and written together, on all threads."""
    source = np.ones(max(1, int(nbytes) // 8), np.float32)
    goal = np.empty_like(source)
    return lambda: _copy(source, goal)


@njit(parallel=True, nogil=True)
def _copy(source, goal):
    for i in prange(len(source)):
        goal[i] = source[i]


def save(path, record):
    """Write what was measured, with what it was measured on."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps({"about": _about(), **record}, indent=1) + "\n")


def kept(path):
    """What `save` wrote there on this processor with these versions; empty if it was on others, or there is nothing."""
    record = json.loads(Path(path).read_text()) if path and Path(path).exists() else {}
    return record if record.pop("about", None) == _about() else {}


def _about():
    return {"target": target.current().name, "processor": jit.processor(target.current())[0],
            "torch": torch.__version__, "numba": numba.__version__}

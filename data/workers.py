"""Patches prepared ahead in other processes, in the same order and with the same values as without."""
import multiprocessing
import signal
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from data.errors import WorkerDied

AHEAD_PER_WORKER = 4
_sampler = None


def patches(sampler, start, stop, workers=0):
    """The patches of steps start..stop-1, in order.

    Processes are spawned, never forked: threads and open HDF5 files do not survive a fork. A few patches per
    worker are prepared ahead; closing the generator ends the workers.

    Parameters
    ----------
    sampler : PatchSampler
    start, stop : int
    workers : int
        0: drawn here when asked for. n: drawn by n processes; each keeps its own copy of stacks held in memory.

    Yields
    ------
    Patch

    Raises
    ------
    DataError
        Whatever `sampler.draw` raises, also when a worker raised it; `WorkerDied` when a process vanished.
    """
    if workers == 0:
        yield from map(sampler.draw, range(start, stop))
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_start, initargs=(sampler,))
    try:
        waiting = deque()
        for step in range(start, stop):
            waiting.append(pool.submit(_draw, step))
            if len(waiting) > AHEAD_PER_WORKER * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise WorkerDied(f"a process that prepares patches ended unexpectedly ({error}); out of memory? "
                         "Use fewer workers, or workers=0 to see the cause") from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start(sampler):
    """In a new worker: leave Ctrl-C and SIGTERM, which reach the whole group, to the parent; keep the sampler."""
    global _sampler
    for request in (signal.SIGINT, signal.SIGTERM):
        signal.signal(request, signal.SIG_IGN)
    _sampler = sampler


def _draw(step):
    return _sampler.draw(step)

"""Memory that is used again: arrays whose blocks come back when nothing refers to them any more.

A fresh block of the operating system costs a page fault every few kilobytes at its first use, as much time as a
pass over it; a training step asks for the same blocks again and again.  `empty` serves from blocks that came back, the
most recent first, since the caches still hold it.  All blocks together are kept to twice what was ever in use at one
time since the last `trim`, which gives the idle ones back to the system, or to less where `at_most` says so.
"""
import contextlib
import math
import threading
from collections import deque

import numpy as np

from znn.runtime.threads import survive_fork

LINE = 64               # alignment of every array, bytes: a cache line, a vector register
SLACK = 2               # a block may be so many times larger than what is asked for
SPARE = 2               # memory held, at most, as a multiple of the most that was in use
_SMALL = 1 << 16        # below this the C library does well enough


def pitch(width, dtype):
    """Elements from row to row of so many columns: whole lines, odd in number to spread rows over the caches' sets."""
    line = LINE // dtype.itemsize
    return (-(-width // line) | 1) * line


class _Block:
    """`size` aligned bytes that return to their arena when the last array on them is gone."""

    def __init__(self, arena, memory):
        self._arena, self._memory = arena, memory
        self.__array_interface__ = {"data": (_aligned(memory), False), "shape": (memory.nbytes - LINE,),
                                    "typestr": "|u1", "version": 3}

    def __del__(self):
        self._arena.returned.append(self._memory)


class Arena:
    """Blocks by size.  Safe from several threads; nothing in it waits for a lock that a finaliser could hold."""

    def __init__(self):
        self.returned = deque()  # finalisers append here, at any moment and in any thread
        self._idle, self._lock = {}, threading.Lock()
        self._idle_bytes = self._total_bytes = self._most_used = 0
        self._limit = math.inf

    def empty(self, shape, dtype):
        """An uninitialised, C-contiguous array that starts on a cache line.

        Parameters
        ----------
        shape : tuple of int
        dtype : numpy.dtype

        Returns
        -------
        ndarray
        """
        size = math.prod(shape) * dtype.itemsize
        if size < _SMALL:
            memory = np.empty(size + LINE, np.uint8)
            start = _aligned(memory) - memory.ctypes.data
            return memory[start:start + size].view(dtype).reshape(shape)
        room = size_class(size)
        with self._lock:
            self._collect()
            memory = self._fitting(room)
            if memory is None:
                self._total_bytes += room
            self._most_used = max(self._most_used, self._total_bytes - self._idle_bytes)
            if memory is None:
                self._drop(self._total_bytes - min(SPARE * self._most_used, self._limit))
        if memory is None:
            memory = np.empty(room + LINE, np.uint8)
        return np.asarray(_Block(self, memory))[:size].view(dtype).reshape(shape)

    def idle(self):
        """Bytes that are kept for the next request."""
        with self._lock:
            self._collect()
            return self._idle_bytes

    def trim(self):
        """Give all idle blocks back to the system."""
        with self._lock:
            self._collect()
            self._drop(self._idle_bytes)
            self._most_used = self._total_bytes

    @contextlib.contextmanager
    def at_most(self, limit):
        """Within the block, hold no idle memory that makes more than `limit` bytes of all blocks together."""
        before, self._limit = self._limit, limit
        try:
            with self._lock:
                self._collect()
                self._drop(self._total_bytes - limit)
            yield
        finally:
            self._limit = before

    def _fitting(self, room):
        """The smallest idle block of at least `room` bytes that is not more than `SLACK` times as large, or None."""
        best = min((r for r in self._idle if room <= r <= SLACK * room), default=None)
        if best is None:
            return None
        memory = self._idle[best].pop()
        if not self._idle[best]:
            del self._idle[best]
        self._idle_bytes -= best
        return memory

    def _collect(self):
        while self.returned:
            memory = self.returned.popleft()
            room = memory.nbytes - LINE
            stack = self._idle[room] = self._idle.pop(room, [])  # last in the dictionary: the latest size
            stack.append(memory)
            self._idle_bytes += room

    def _drop(self, excess):
        """Give up idle blocks, of the sizes least recently returned first, for at least `excess` bytes."""
        for room in list(self._idle):
            stack = self._idle[room]
            while stack and excess > 0:
                stack.pop(0)
                excess -= room
                self._idle_bytes -= room
                self._total_bytes -= room
            if not stack:
                del self._idle[room]


def size_class(size):
    """The least of eight sizes to each power of two that holds `size` bytes: at most an eighth is unused."""
    step = 1 << max(size.bit_length() - 4, 6)
    return -(-size // step) * step


def _aligned(memory):
    return -(-memory.ctypes.data // LINE) * LINE


_arena = Arena()
survive_fork(_arena._lock)
empty, trim, idle, at_most = _arena.empty, _arena.trim, _arena.idle, _arena.at_most

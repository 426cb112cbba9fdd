"""Memory that is used again: arrays whose blocks come back when nothing refers to them any more.

A fresh block of the operating system costs a page fault every few kilobytes at its first use, as much time as a
pass over it; a training step asks for the same blocks again and again.  `empty` serves from blocks that came back, the
most recent first, since the caches still hold it.  Idle blocks are kept up to what is in use (at least `KEEP_BYTES`);
`trim` gives all of them back to the system.
"""
import math
import threading
from collections import deque

import numpy as np

LINE = 64               # alignment of every array, bytes: a cache line, a vector register
KEEP_BYTES = 64 << 20  # idle memory that is always kept
_SMALL = 1 << 16        # below this the C library does well enough


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
        self._idle_bytes = self._total_bytes = 0

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
            stack = self._idle.get(room)
            memory = stack.pop() if stack else None
            if memory is not None:
                self._idle_bytes -= room
            else:
                self._total_bytes += room
                self._limit()
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
            self._drop(0)

    def _collect(self):
        while self.returned:
            memory = self.returned.popleft()
            room = memory.nbytes - LINE
            stack = self._idle[room] = self._idle.pop(room, [])  # last in the dictionary: the latest size
            stack.append(memory)
            self._idle_bytes += room

    def _limit(self):
        in_use = self._total_bytes - self._idle_bytes
        if self._idle_bytes > max(KEEP_BYTES, in_use):
            self._drop(max(KEEP_BYTES, in_use))

    def _drop(self, most):
        """Drop idle blocks, of the sizes least recently returned first, until at most `most` bytes are idle."""
        for room in list(self._idle):
            stack = self._idle[room]
            while stack and self._idle_bytes > most:
                stack.pop(0)
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
empty, trim, idle = _arena.empty, _arena.trim, _arena.idle

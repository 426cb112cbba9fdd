"""Reading ahead and writing behind: a thread for each, so that computing waits for the disk as little as it can.

Only one call each is under way, of reading the next block and of writing the last one, so memory is bounded. What
fails there surfaces at the next `check`. Both threads are done with their work when the block of `Helpers` ends.
"""
from concurrent.futures import ThreadPoolExecutor


class Helpers:
    """The two threads; a context manager.

    When the block ends, what was handed over for writing is written; where it ends by an exception too, unless that is
    what writing failed by.
    """

    def __init__(self):
        self._reader = ThreadPoolExecutor(1, "reading ahead")
        self._writer = ThreadPoolExecutor(1, "writing behind")
        self._read = self._written = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self._reader.shutdown(cancel_futures=True)
        self._writer.shutdown()
        if error is None:
            self.settle()

    def ahead(self, read, items):
        """(item, read(item)) of each item, the next being read while this one is worked on.

        Parameters
        ----------
        read : callable
        items : iterable
            Taken one ahead, in the thread that iterates.
        """
        items = iter(items)
        item = next(items, self)
        if item is not self:
            self._read = self._reader.submit(read, item)
        while item is not self:
            found = self._read.result()
            following = next(items, self)
            self._read = None if following is self else self._reader.submit(read, following)
            yield item, found
            del found
            item = following

    def behind(self, write, *arguments):
        """Call ``write(*arguments)`` in the other thread, once the call before is done."""
        self.settle()
        self._written = self._writer.submit(write, *arguments)

    def settle(self):
        """Wait until what was handed over is written; raises what writing it raised."""
        written, self._written = self._written, None
        if written is not None:
            written.result()

    def check(self):
        """Raise what reading or writing has failed by, if it has."""
        for call in (self._read, self._written):
            if call is not None and call.done():
                call.result()

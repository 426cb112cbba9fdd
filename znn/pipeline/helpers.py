"""Reading ahead and writing behind: a thread for each, so that computing waits for the disk as little as it can."""
from concurrent.futures import ThreadPoolExecutor


class Helpers:
    """The two threads; a context manager.

    Only one call each is under way, of reading the next block and of writing the last one, so memory is bounded. What
    reading raises surfaces when its block is due, what writing raises at the next block to be written or at the end.
    When the context ends, be it by an exception, what was handed over has been written.
    """

    def __init__(self):
        self._reader = ThreadPoolExecutor(1, "reading ahead")
        self._writer = ThreadPoolExecutor(1, "writing behind")
        self._written = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self._reader.shutdown(cancel_futures=True)
        self._writer.shutdown()
        if error is None:
            self._settle()

    def ahead(self, read, items):
        """(item, read(item)) of each item, the next one being read while this one is worked on.

        Parameters
        ----------
        read : callable
        items : iterable
            Taken one ahead, in the thread that iterates.
        """
        under_way = None
        for item in items:
            following = item, self._reader.submit(read, item)
            if under_way is not None:
                yield under_way[0], under_way[1].result()
            under_way = following
        if under_way is not None:
            yield under_way[0], under_way[1].result()

    def behind(self, write, *arguments):
        """Call ``write(*arguments)`` in the other thread, once the call before is done."""
        self._settle()
        self._written = self._writer.submit(write, *arguments)

    def _settle(self):
        written, self._written = self._written, None
        if written is not None:
            written.result()

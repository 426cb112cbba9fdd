"""Stopping on request: a signal is noted, the work in hand is finished and kept, then the run ends."""
import contextlib
import signal
import threading

from znn.pipeline.errors import Interrupted

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interruption:
    """Whether somebody asked to stop.

    `check` at points where stopping is safe raises `Interrupted`. A second Ctrl-C stops at once.
    """

    def __init__(self):
        self.signal = None

    def request(self, number, frame=None):
        """Note a signal; the handler of `watched`."""
        if self.signal == signal.SIGINT == number:
            raise KeyboardInterrupt
        self.signal = number

    def check(self):
        """Raise `Interrupted` if a signal came."""
        if self.signal is not None:
            raise Interrupted(f"stopped by {signal.Signals(self.signal).name}")


@contextlib.contextmanager
def watched():
    """An `Interruption` that SIGTERM and SIGINT set while the block runs; outside the main thread none do."""
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {number: signal.signal(number, interruption.request) for number in SIGNALS}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

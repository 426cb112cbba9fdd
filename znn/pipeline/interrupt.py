"""Stopping on request: SIGTERM and Ctrl-C end a block of code as an error that teaches how to go on."""
import contextlib
import signal

from znn.pipeline.errors import Interrupted

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _Stop(BaseException):
    """Raised where the code is when the signal arrives; no `except Exception` on the way may swallow it."""


@contextlib.contextmanager
def stoppable(how_to_go_on):
    """Turn the first SIGTERM or Ctrl-C inside the block into `Interrupted`; a second one acts as it always does.

    Files that are open are closed on the way out. Works in the main thread only, as Python's signals do.

    Parameters
    ----------
    how_to_go_on : callable
        Gives the end of the message, when it is needed.

    Raises
    ------
    Interrupted
    """
    def stop(number, frame):
        restore()
        raise _Stop(signal.Signals(number).name)

    def restore():
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    except _Stop as request:
        raise Interrupted(f"stopped by {request}; {how_to_go_on()}") from None
    finally:
        restore()

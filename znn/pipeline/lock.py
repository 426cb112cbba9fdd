"""One process at a time works in the folder of a run."""
import contextlib
import fcntl
import os
from pathlib import Path

from znn.pipeline.errors import RunInUse

LOCK = ".lock"


@contextlib.contextmanager
def locked(folder):
    """Hold an advisory lock (flock) on a folder; it goes with the process, however that ends.

    Yields
    ------
    str or None
        Why there is no lock, where the file system has none.

    Raises
    ------
    RunInUse
        If another process holds it.
    OSError
        If no file can be made in the folder.
    """
    path = Path(folder) / LOCK
    with open(path, "a") as file:
        missing = None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(folder) from None
        except OSError as error:
            missing = (f"{folder}: the file system cannot lock ({error.strerror}); make sure that no other process "
                       "works on this run")
        if missing is None and not _same(file, path):  # its holder removed it just now: another may have begun anew
            raise _in_use(folder)
        try:
            yield missing
        finally:
            path.unlink(missing_ok=True)


def _in_use(folder):
    return RunInUse(f"{folder}: another process works on this run; wait for its end or stop it, or start a run with "
                    "name=<another>")


def _same(file, path):
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False

"""Files appear whole or not at all."""
import contextlib
import os
from pathlib import Path


@contextlib.contextmanager
def replacing(path, durable=False):
    """A path to write to, beside `path`, which what was written there replaces at the end of the block.

    Where the block fails, or the file cannot be replaced (`OSError`), what was there before is untouched.

    Parameters
    ----------
    path : str or Path
    durable : bool
        Wait for the disk before: after a power failure too there is the old file or the new one.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        if durable:
            with open(partial, "rb") as file:
                os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        with contextlib.suppress(OSError):  # such as a folder that is none: said above
            partial.unlink(missing_ok=True)

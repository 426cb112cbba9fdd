"""Files appear whole or not at all."""
import contextlib
import os
from pathlib import Path


@contextlib.contextmanager
def replacing(path):
    """A path to write to, beside `path`, which what was written there replaces at the end of the block."""
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        os.replace(partial, path)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)

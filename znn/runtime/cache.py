"""Machine code kept between runs, in the user's cache folder.

An entry is a digest of its name and content, then the object file. What does not carry its own digest is ignored and
written anew, so one that is damaged, cut short or another's costs a compilation and nothing else; entries appear by
renaming, so processes may share the folder. Machine code is only read from a folder that belongs to the user and that
nobody else can write to.
``ZNN_KERNEL_CACHE=0`` does without.
"""
import contextlib
import hashlib
import os
import stat
import tempfile
from functools import cache
from pathlib import Path

import llvmlite
import numba

from znn import codegen, loops
from znn.codegen import transforms
from znn.runtime import switches

DIGEST = 32


def folder():
    """Where entries are: ``$XDG_CACHE_HOME/znn/kernels``, ``~/.cache`` standing in for an unset variable."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "znn" / "kernels"


def key(*parts):
    """Name of the entry for what `parts` describe, compiled by this version of the generator and of LLVM."""
    text = "\n".join([*map(repr, parts), llvmlite.__version__, numba.__version__, generator(), _transforms()])
    return hashlib.sha256(text.encode()).hexdigest()


def load(name):
    """The object file of an entry, or None where there is none to be trusted."""
    with contextlib.suppress(OSError, RuntimeError):  # the latter: no home folder
        if switches.on("ZNN_KERNEL_CACHE") and _usable(folder()):
            content = (folder() / name).read_bytes()
            if _digest(name, content[DIGEST:]) == content[:DIGEST]:
                return content[DIGEST:]
    return None


def store(name, code):
    """Keep an object file; where the folder cannot be used, nothing happens."""
    if not switches.on("ZNN_KERNEL_CACHE"):
        return
    with contextlib.suppress(OSError, RuntimeError):  # the latter: no home folder
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _usable(folder()):
            return
        handle, temporary = tempfile.mkstemp(dir=folder())
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_digest(name, code) + code)
            os.replace(temporary, folder() / name)
        except BaseException:
            os.unlink(temporary)
            raise


def _digest(name, code):
    return hashlib.sha256(name.encode() + code).digest()


def _usable(path):
    found = path.stat()
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@cache
def generator():
    """Digest of the sources that decide what code comes out for a schedule."""
    return _sources(codegen, loops)


@cache
def _transforms():
    return _sources(transforms)  # no schedule decides about them, so times measured for schedules stay


def _sources(*packages):
    sources = sorted(p for package in packages for p in Path(package.__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(p.read_bytes() for p in sources)).hexdigest()

"""Shared by all tests: real stacks when they are there, small odd volumes always."""
import os
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]

settings.register_profile("no deadline", deadline=None)  # other programs may hold the machine for a while
settings.load_profile("no deadline")


def em_file(name):
    """Path of a real stack; the test is skipped where it is absent (folder: ZNN_EM_DATA, else ../shared/em)."""
    path = Path(os.environ.get("ZNN_EM_DATA", ROOT.parent / "shared" / "em")) / name
    if not path.is_file():
        pytest.skip(f"real stack {path.name} is not there; set ZNN_EM_DATA to its folder")
    return path

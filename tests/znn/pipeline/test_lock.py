"""One process at a time in the folder of a run."""
import errno
import fcntl
import os
import signal
import subprocess
import sys

import pytest

from znn.pipeline.errors import RunInUse
from znn.pipeline.lock import LOCK, locked

HOLDER = """
import sys, time
from znn.pipeline.lock import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


def test_another_process_is_kept_out_until_the_first_is_gone_however_it_ends(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True)
    with holder:
        try:
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(RunInUse, match="another process works on this run; wait for its end or stop it"):
                with locked(tmp_path):
                    pass
            assert (tmp_path / LOCK).exists()
        finally:
            holder.send_signal(signal.SIGKILL)
    with locked(tmp_path) as warning:
        assert warning is None
    assert not list(tmp_path.iterdir())


def test_the_lock_of_a_file_that_its_holder_removed_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda *_: os.unlink(tmp_path / LOCK))
    with pytest.raises(RunInUse), locked(tmp_path):
        pass


def test_without_locks_work_goes_on_with_a_warning(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none)
    with locked(tmp_path) as warning:
        assert "cannot lock (No locks available); make sure that no other process works on this run" in warning


def test_a_folder_that_takes_no_file_says_so(tmp_path):
    with pytest.raises(OSError, match="No such file"), locked(tmp_path / "none"):
        pass

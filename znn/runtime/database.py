"""Schedules that were found by measuring, in one SQLite file; convolutions look here before they follow the rule.

The file is ``$XDG_DATA_HOME/znn/schedules.sqlite``, or what ``ZNN_SCHEDULES`` names; ``ZNN_SCHEDULES=0`` does without.
An entry belongs to a contraction (exactly: extents, strides, guards), dtype, packing, target and processor.  A schedule
found with another version of the generator still computes the same and is still used, but any time measured with this
version replaces it; of two times measured with the same version the better one is kept.

Reading never writes or creates anything, and never fails: what cannot be read or used is named in one warning and
left out.  Writers take their turns, and what they write is there wholly or not at all, also when they are killed.
"""
import contextlib
import math
import os
import sqlite3
import warnings
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np

from znn.codegen import target
from znn.codegen.plan import PLAIN, Epilogue, Plan
from znn.loops import Schedule
from znn.runtime import switches
from znn.runtime.cache import generator

KEY = ("contraction", "dtype", "packed", "target", "processor")
COLUMNS = (*KEY, "generator", "schedule", "seconds", "source")
WAIT = 10.0  # seconds for other processes to finish writing

_TYPES = ("TEXT",) * 7 + ("REAL", "TEXT")
_CREATE = f"""CREATE TABLE IF NOT EXISTS schedules ({', '.join(f'{c} {t} NOT NULL' for c, t in zip(COLUMNS, _TYPES))},
    PRIMARY KEY ({', '.join(KEY)})) WITHOUT ROWID"""
_MATCH = " AND ".join(f"{c} = ?" for c in KEY)
_KEEP_BETTER = f"""INSERT INTO schedules VALUES ({', '.join('?' * len(COLUMNS))})
    ON CONFLICT DO UPDATE SET {', '.join(f'{c} = excluded.{c}' for c in COLUMNS[len(KEY):])}
    WHERE (excluded.generator = ?, -excluded.seconds) > (generator = ?, -seconds)"""


def file():
    """Path of the database, None where it is switched off; there may be no such file."""
    chosen = os.environ.get("ZNN_SCHEDULES") or "on"
    wanted = switches.word(chosen)
    if wanted is False:
        return None
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return data / "znn" / "schedules.sqlite" if wanted else Path(chosen)


def find(contraction, dtype, packed=None, where=None, epilogue=PLAIN):
    """The schedule stored for a contraction, None where there is none that can be used.

    Parameters
    ----------
    contraction : Contraction
    dtype : numpy.dtype
    packed : {None, "before", "inside"}
        As for `Plan`.
    where : Target, optional
        The current one unless given.
    epilogue : Epilogue
        What the schedule must allow to follow its sums; all epilogues share an entry.
    """
    where, dtype = where or target.current(), np.dtype(dtype)
    key = _key(contraction, dtype, packed, where)
    try:
        found = _read(f"SELECT schedule FROM schedules WHERE {_MATCH}", key)
    except OSError as error:
        _warn(f"{error}; default schedules are used")
        return None
    for text, in found:
        try:
            schedule = Schedule.parse(text)
            Plan(contraction, schedule, where, dtype, epilogue, packed)
            return schedule
        except ValueError as error:
            _warn(f"{file()}: the schedule {text!r} of {key[0]} ({', '.join(key[1:])}) is not used: {error}; measure "
                  "again, or remove it with znn.runtime.database.drop")
    return None


def store(contraction, schedule, seconds, source, dtype, packed=None, where=None):
    """Keep a schedule and the time it takes, if it is the best known; whether it is.

    Parameters
    ----------
    contraction, dtype, packed, where
        As for `find`.
    schedule : Schedule
    seconds : float
    source : str
        What found it, in a word or two.

    Raises
    ------
    IllegalSchedule
        If the schedule does not compute the contraction.
    ValueError
        If `seconds` is not a positive number.
    OSError
        If the file cannot be written.
    """
    where, dtype = where or target.current(), np.dtype(dtype)
    Plan(contraction, schedule, where, dtype, packed=packed)
    return _keep([(*_key(contraction, dtype, packed, where), generator(), str(schedule), _time(seconds),
                   " ".join(source.split()))]) == 1


def drop(contraction, dtype, packed=None, where=None):
    """Remove the entry that `find` looks at; whether there was one."""
    key = _key(contraction, np.dtype(dtype), packed, where or target.current())
    if not (file() and file().exists()):
        return False
    with _writing() as db:
        return db.execute(f"DELETE FROM schedules WHERE {_MATCH}", key).rowcount == 1


def export_text(path):
    """Write all entries as text: the names of the columns, then an entry a line, sorted, columns separated by tabs.

    Raises
    ------
    OSError
        If the database cannot be read, or the text not be written.
    """
    rows = sorted(tuple(map(str, row)) for row in _read(f"SELECT {', '.join(COLUMNS)} FROM schedules", ()))
    Path(path).write_text("".join("\t".join(row) + "\n" for row in [COLUMNS, *rows]), encoding="utf-8")


def import_text(path):
    """Take over the entries of an exported text that are better than what is there; how many those are.

    Raises
    ------
    ValueError
        If the text is not what `export_text` writes; nothing of it is taken over then.
    OSError
        If the text cannot be read, or the database not be written.
    """
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    if not lines or tuple(lines[0].split("\t")) != COLUMNS:
        raise ValueError(f"{path}: expected the columns {', '.join(COLUMNS)}, separated by tabs, in the first line; "
                         f"found {lines[0] if lines else 'nothing'!r}")
    rows = []
    for number, line in enumerate(lines[1:], 2):
        row = line.split("\t")
        if len(row) != len(COLUMNS):
            raise ValueError(f"{path}, line {number}: expected {len(COLUMNS)} columns, found {len(row)}")
        *key, made, schedule, seconds, source = row
        try:
            rows.append((*key, made, str(Schedule.parse(schedule)), _time(seconds), source))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    return _keep(rows)


def schedule_for(contraction, rule, where, dtype, packed, task=None):
    """The schedule stored for a convolution, else what ``rule(contraction, lanes, registers)`` makes.

    Only a kernel that packs for itself, which is that of the weights, may split a sum over tasks.  With `task`, every
    index of that dimension must be a task: a stored schedule that divides the work otherwise is not used.
    """
    epilogue = PLAIN if packed == "inside" else Epilogue(bias=True)
    found = find(contraction, dtype, packed, where, epilogue)
    if found and task and not found.one_task_each(task):
        _warn(f"{file()}: the schedule {str(found)!r} of {contraction.name} is not used: every {task} must be a task "
              "of its own; measure again, or remove it with znn.runtime.database.drop")
        found = None
    return found or rule(contraction, where.lanes(dtype), where.registers)


def _key(contraction, dtype, packed, where):
    """What an entry belongs to, as text."""
    text = "; ".join(str(contraction).split("\n")) + (f"; {contraction.bias}" if contraction.bias else "")
    return text, dtype.name, packed or "no", where.name, llvm.get_host_cpu_name()


def _time(seconds):
    seconds = float(seconds)
    if not 0 < seconds < math.inf:
        raise ValueError(f"seconds: expected a positive number, found {seconds}")
    return seconds


def _read(query, values):
    """Rows of a query; none where there is no file."""
    path = file()
    with _explained("read", path):
        if not (path and path.is_file()):
            return []
        # "rw" creates no file, and sets right what a killed writer left behind
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=WAIT)) as db:
            made = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'schedules'").fetchone()
            return db.execute(query, values).fetchall() if made else []


def _keep(rows):
    """How many of the rows were better than what was there."""
    if not file():
        return 0
    with _writing() as db:
        return sum(db.execute(_KEEP_BETTER, (*row, generator(), generator())).rowcount for row in rows)


@contextlib.contextmanager
def _writing():
    """The database, for one transaction."""
    path = file()
    with _explained("written", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(path, timeout=WAIT, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            db.execute(_CREATE)
            yield db
            db.execute("COMMIT")  # without it, closing rolls back


@contextlib.contextmanager
def _explained(done, path):
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise OSError(f"{path}: the database of schedules cannot be {done} ({error}); move the file away, or set "
                      "ZNN_SCHEDULES to another one or to 0") from error


@cache
def _warn(message):
    warnings.warn(message, stacklevel=3)

"""Schedules that were found by measuring, in one SQLite file; convolutions look here before they follow the rule.

The file is ``$XDG_DATA_HOME/znn/schedules.sqlite``, or what ``ZNN_SCHEDULES`` names; ``ZNN_SCHEDULES=0`` does without.
An entry belongs to a contraction (exactly: extents, strides, guards), dtype, packing, target and processor.  A schedule
found with another version of the generator still computes the same and is still used, but any time measured with this
version replaces it; of two times measured with the same version the better one is kept.  A schedule that nobody
measured has an infinite time.

Reading never writes or creates anything, and never fails: what cannot be read or used is named in one warning and
left out.  Writers take their turns, and what they write is there wholly or not at all, also when they are killed.

A process looks a schedule up once, when a convolution first needs it, and again after it has itself written to the
database; `forget` makes it see what others wrote, and another ``ZNN_SCHEDULES``.
"""
import contextlib
import functools
import math
import os
import sqlite3
import warnings
from collections import namedtuple
from pathlib import Path

import llvmlite.binding as llvm

from znn.codegen import target
from znn.codegen.group import element
from znn.codegen.plan import PLAIN, Epilogue, Plan
from znn.loops import Schedule
from znn.runtime import switches
from znn.runtime.cache import generator

KEY = ("contraction", "dtype", "packed", "target", "processor")
COLUMNS = (*KEY, "generator", "schedule", "seconds", "source")
Entry = namedtuple("Entry", COLUMNS)
WAIT = 10.0  # seconds for other processes to finish writing

_TYPES = ("TEXT",) * 7 + ("REAL", "TEXT")
_CREATE = f"""CREATE TABLE IF NOT EXISTS schedules ({', '.join(f'{c} {t} NOT NULL' for c, t in zip(COLUMNS, _TYPES))},
    PRIMARY KEY ({', '.join(KEY)})) WITHOUT ROWID"""
_MATCH = " AND ".join(f"{c} = ?" for c in KEY)
_REPLACE = f"INSERT OR REPLACE INTO schedules VALUES ({', '.join('?' * len(COLUMNS))})"
_KEEP_BETTER = f"""INSERT INTO schedules VALUES ({', '.join('?' * len(COLUMNS))})
    ON CONFLICT DO UPDATE SET {', '.join(f'{c} = excluded.{c}' for c in COLUMNS[len(KEY):])}
    WHERE (excluded.generator = ?, -excluded.seconds) > (generator = ?, -seconds)"""


_lookups = []
_editions = 0


def follows_schedules(function):
    """Like ``functools.lru_cache``, for what depends on the database; it is forgotten when that changes.

    Calls cost the same; one that is under way while another thread stores may still keep the earlier schedule.
    """
    kept = functools.lru_cache(maxsize=4096)(function)
    _lookups.append(kept.cache_clear)
    return kept


def forget():
    """Look all schedules up again, each when it is next needed."""
    global _editions
    _editions += 1
    for clear in _lookups:
        clear()


def edition():
    """A number that is another one after every `forget`: what was made with schedules before may be out of date."""
    return _editions


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
    dtype : numpy.dtype or Group
    packed : {None, "before", "inside"}
        As for `Plan`.
    where : Target, optional
        The current one unless given.
    epilogue : Epilogue
        What the schedule must allow to follow its sums; all epilogues share an entry.
    """
    where, dtype = where or target.current(), element(dtype)
    key = _key(contraction, dtype, packed, where)
    try:
        found = read(f"SELECT schedule FROM schedules WHERE {_MATCH}", key)
    except OSError as error:
        _warn(f"{error}; default schedules are used")
        return None
    for written, in found:
        try:
            schedule = Schedule.parse(written)
            Plan(contraction, schedule, where, dtype, epilogue, packed)
            return schedule
        except ValueError as error:
            _warn(f"{file()}: the schedule {written!r} of {key[0]} ({', '.join(key[1:])}) is not used: {error}; "
                  "measure again, or remove it with znn.runtime.database.drop")
    return None


def known(contraction, dtype, packed=None, where=None):
    """The entry of a contraction as it stands there, used or not; None where there is none.

    Raises
    ------
    OSError
        If the database cannot be read.
    """
    key = _key(contraction, element(dtype), packed, where or target.current())
    return next((Entry(*row) for row in read(f"SELECT {', '.join(COLUMNS)} FROM schedules WHERE {_MATCH}", key)), None)


def store(contraction, schedule, seconds, source, dtype, packed=None, where=None, replace=False):
    """Keep a schedule and the time it takes, if it is the best known; whether it is.

    Parameters
    ----------
    contraction, dtype, packed, where
        As for `find`.
    schedule : Schedule
    seconds : float or None
        None if nobody measured it.
    source : str
        What found it, in a word or two.
    replace : bool
        Whatever is known: it was measured in turn with that, or is to be forgotten.

    Raises
    ------
    IllegalSchedule
        If the schedule does not compute the contraction.
    ValueError
        If `seconds` is not a positive number.
    OSError
        If the file cannot be written.
    """
    where, dtype = where or target.current(), element(dtype)
    Plan(contraction, schedule, where, dtype, packed=packed)
    return keep([Entry(*_key(contraction, dtype, packed, where), generator(), str(schedule), _time(seconds),
                       " ".join(source.split()))], replace) == 1


def drop(contraction, dtype, packed=None, where=None):
    """Remove the entry that `find` looks at; whether there was one."""
    key = _key(contraction, element(dtype), packed, where or target.current())
    if not (file() and file().exists()):
        return False
    with writing() as db:
        return db.execute(f"DELETE FROM schedules WHERE {_MATCH}", key).rowcount == 1


def schedule_for(contraction, rule, where, dtype, packed, task=None, stores=None):
    """The schedule stored for a convolution, else what ``rule(contraction, lanes, registers)`` makes.

    Only a kernel that packs for itself, which is that of the weights, may split a sum over tasks.  With `task`, every
    index of that dimension must be a task: a stored schedule that divides the work otherwise is not used.  `stores` is
    the epilogue's.
    """
    epilogue = PLAIN if packed == "inside" else Epilogue(bias=True, stores=stores)
    found = find(contraction, dtype, packed, where, epilogue)
    if found and task and not found.one_task_each(task):
        _warn(f"{file()}: the schedule {str(found)!r} of {contraction.name} is not used: every {task} must be a task "
              "of its own; measure again, or remove it with znn.runtime.database.drop")
        found = None
    return found or rule(contraction, where.lanes(dtype), where.registers)


def text(contraction):
    """How entries name a contraction; `exchange.contraction` reads it back."""
    return "; ".join(str(contraction).split("\n")) + (f"; {contraction.bias}" if contraction.bias else "")


def processor():
    """How entries name the processor at hand."""
    return llvm.get_host_cpu_name()


def _key(contraction, dtype, packed, where):
    """What an entry belongs to, as text."""
    return text(contraction), dtype.name, packed or "no", where.name, processor()


def _time(seconds):
    if seconds is None:
        return math.inf
    seconds = float(seconds)
    if not 0 < seconds < math.inf:
        raise ValueError(f"seconds: expected a positive number, found {seconds}")
    return seconds


def read(query, values=()):
    """Rows of a query; none where there is no file.  For `exchange`, as is `keep`."""
    path = file()
    with _explained("read", path):
        if not (path and path.is_file()):
            return []
        # "rw" creates no file, and sets right what a killed writer left behind
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=WAIT)) as db:
            made = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'schedules'").fetchone()
            return db.execute(query, values).fetchall() if made else []


def keep(rows, replace=False):
    """How many of the entries were better than what was there, or all with `replace`."""
    if not file():
        return 0
    with writing() as db:
        if replace:
            return db.executemany(_REPLACE, rows).rowcount
        return sum(db.execute(_KEEP_BETTER, (*row, generator(), generator())).rowcount for row in rows)


@contextlib.contextmanager
def writing():
    """The database, for one transaction; an empty one makes sure that it can be written."""
    path = file()
    with _explained("written", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(path, timeout=WAIT, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            db.execute(_CREATE)
            yield db
            db.execute("COMMIT")  # without it, closing rolls back
    forget()


@contextlib.contextmanager
def _explained(done, path):
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise OSError(f"{path}: the database of schedules cannot be {done} ({error}); move the file away, or set "
                      "ZNN_SCHEDULES to another one or to 0") from error


@functools.cache
def _warn(message):
    warnings.warn(message, stacklevel=3)

"""The database of schedules as text, to look at and to take elsewhere; and which of its entries are of no use any more.

A text has the names of the columns in its first line, then an entry a line, columns separated by tabs.
"""
import math
import re
from pathlib import Path

from znn.codegen import target
from znn.codegen.group import element
from znn.codegen.plan import PLAIN, Epilogue, Plan
from znn.loops import Contraction, Schedule
from znn.loops.contraction import Access, Dim, Guard
from znn.runtime.database import COLUMNS, KEY, Entry, keep, read, writing
from znn.runtime.files import replacing

TASKS = {"points_forward": "p"}  # by contraction: the dimension of which the caller runs every index as a task


def entries():
    """All entries, sorted; list of Entry.

    Raises
    ------
    OSError
        If the database cannot be read.
    """
    return sorted(Entry(*row) for row in read(f"SELECT {', '.join(COLUMNS)} FROM schedules"))


def unusable(entry):
    """Why no convolution can use an entry; None where it can."""
    try:
        c, schedule = contraction(entry.contraction), Schedule.parse(entry.schedule)
        if entry.target not in target.TARGETS:
            raise ValueError(f"unknown target {entry.target!r}")
        packed = None if entry.packed == "no" else entry.packed
        epilogue = Epilogue(bias=True) if packed == "before" else PLAIN
        Plan(c, schedule, target.TARGETS[entry.target], element(entry.dtype), epilogue, packed)
        task = TASKS.get(c.name)
        if task and not schedule.one_task_each(task):
            raise ValueError(f"every {task} must be a task of its own")
    except (ValueError, TypeError, LookupError) as error:  # no dtype of numpy's, a dimension that is not there
        return str(error)
    return None


def prune():
    """Remove the entries that are `unusable`; list of (Entry, reason).

    Raises
    ------
    OSError
        If the database cannot be read, or there are such entries and it cannot be written.
    """
    found = [(entry, reason) for entry in entries() if (reason := unusable(entry))]
    if found:
        with writing() as db:  # what another process has put in an entry's place meanwhile stays
            db.executemany(f"DELETE FROM schedules WHERE {' AND '.join(f'{c} = ?' for c in (*KEY, 'schedule'))}",
                           [(*entry[:len(KEY)], entry.schedule) for entry, _ in found])
    return found


def export_text(path):
    """Write all entries as text, sorted; how many there are.

    Raises
    ------
    OSError
        If the database cannot be read, or the text not be written.
    """
    lines = [COLUMNS, *(map(str, entry) for entry in entries())]
    with replacing(path) as partial:
        partial.write_text("".join("\t".join(line) + "\n" for line in lines), encoding="utf-8")
    return len(lines) - 1


def import_text(path):
    """Take over the entries of an exported text that are better than what is there.

    Returns
    -------
    taken : int
        How many those are.
    left_out : list of (Entry, str)
        Those of which no kernel can be made, and why.

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
    found = [_entry(path, number, line) for number, line in enumerate(lines[1:], 2)]
    left_out = [(entry, reason) for entry in found if (reason := unusable(entry))]
    bad = {entry for entry, _ in left_out}
    return keep([entry for entry in found if entry not in bad]), left_out


def contraction(text):
    """The contraction that an entry belongs to.

    Raises
    ------
    ValueError
        If the text is not one's.
    """
    head, sums, *rest = text.split("; ")
    name, dims = head.split("  ", 1)
    free, summed = (part.split() for part in dims.split("|"))
    dims = [(d.split(":"), part is summed) for part in (free, summed) for d in part]
    out, a, b = map(_access, re.split(r" \+= | \* ", sums))
    guards = [re.fullmatch(r"where 0 <= (.+) < (-?\d+)", line) for line in rest]
    bias = [_access(line) for line, guard in zip(rest, guards) if not guard]
    return Contraction(name, tuple(Dim(d, int(extent), reduction) for (d, extent), reduction in dims), out, a, b,
                       bias[0] if bias else None,
                       tuple(Guard(_access(f"{a.name}[{g[1]}]"), int(g[2])) for g in guards if g))


def _access(text):
    """An access from its text, such as ``x[3 + 20 z + 1 x]``."""
    match = re.fullmatch(r"(\w+)\[(.*)\]", text)
    if not match:
        raise ValueError(f"cannot read the access {text!r}")
    terms = [term.split() for term in match[2].split(" + ") if term]
    return Access(match[1], tuple((term[1], int(term[0])) for term in terms if len(term) == 2),
                  sum(int(term[0]) for term in terms if len(term) == 1))


def _entry(path, number, line):
    row = line.split("\t")
    if len(row) != len(COLUMNS):
        raise ValueError(f"{path}, line {number}: expected {len(COLUMNS)} columns, found {len(row)}")
    try:
        entry = Entry(*row)
        Schedule.parse(entry.schedule)
        seconds = float(entry.seconds)
        if not 0 < seconds <= math.inf:
            raise ValueError(f"seconds: expected a positive number, found {seconds}")
        return entry._replace(seconds=seconds)
    except ValueError as error:
        raise ValueError(f"{path}, line {number}: {error}") from error

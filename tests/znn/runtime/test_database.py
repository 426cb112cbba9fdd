"""Schedules that were found by measuring: kept, shared between processes, used by convolutions."""
import multiprocessing
import os
import signal
import sqlite3
import warnings

import numpy as np
import pytest
from hypothesis import given

from tests.znn.loops.nests import contractions
from znn.codegen import target
from znn.codegen.plan import Epilogue
from znn.loops import IllegalSchedule, Loop, Schedule, conv_backward_data, conv_forward, matmul, points_forward
from znn.runtime import conv, database, default, exchange, request

F32 = np.dtype(np.float32)
PRODUCT = matmul(6, 8, 4)
GOOD, OTHER = Schedule.parse("m:1 parallel, k:1, n:1 vector"), Schedule.parse("m:1, k:1, n:1 vector")
PARALLEL_SUM = Schedule.parse("k:1 parallel, m:1, n:1 vector")


@pytest.fixture(autouse=True)
def own_file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("ZNN_SCHEDULES", raising=False)
    database._warn.cache_clear()
    database.forget()
    yield tmp_path / "data" / "znn" / "schedules.sqlite"
    database.forget()


def put(schedule=GOOD, seconds=1.0, contraction=PRODUCT, dtype=F32, **others):
    return database.store(contraction, schedule, seconds, "a test", dtype, **others)


def execute(path, command, values=()):
    with sqlite3.connect(path) as db:
        db.execute(command, values)
    db.close()


def test_what_is_stored_is_found_again():
    assert put()
    assert database.find(PRODUCT, F32) == GOOD
    assert database.find(matmul(6, 8, 5), F32) is None
    assert database.find(PRODUCT, np.float64) is None
    assert database.find(PRODUCT, F32, "before") is None
    assert database.find(PRODUCT, F32, where=target.TARGETS["neon"]) is None
    assert database.drop(PRODUCT, F32) and not database.drop(PRODUCT, F32)
    assert database.find(PRODUCT, F32) is None


def test_contractions_that_differ_anywhere_have_entries_of_their_own():
    shape = (1, 2, 3, (1, 3, 3), (2, 9, 20))
    alike = [conv_forward(*shape), conv_forward(*shape, columns=(0, 16)), conv_forward(*shape, columns=(4, 20)),
             conv_forward(*shape, dilation=(1, 2, 2)), conv_backward_data(*shape),
             conv_backward_data(*shape, g_start=3), conv_backward_data(*shape, taps=(1, 3)),
             conv_backward_data(*shape, g_strides=(9000, 3000, 1000, 100, 1))]
    for i, c in enumerate(alike):
        put(default.spatial(c, 4, 16), 1 + i, c)
    assert [database.find(c, F32) for c in alike] == [default.spatial(c, 4, 16) for c in alike]
    assert len({database._key(c, F32, None, target.current()) for c in alike}) == len(alike)


def test_reading_creates_nothing(own_file, tmp_path):
    assert database.find(PRODUCT, F32) is None and not database.drop(PRODUCT, F32)
    exchange.export_text(tmp_path / "text")
    assert [p.name for p in tmp_path.iterdir()] == ["text"]
    put()
    assert database.find(PRODUCT, F32)
    assert list(own_file.parent.iterdir()) == [own_file]


def test_the_better_entry_wins(monkeypatch):
    assert put(GOOD, 2.0) and not put(OTHER, 3.0)
    assert database.find(PRODUCT, F32) == GOOD
    assert put(OTHER, 1.0)
    assert database.find(PRODUCT, F32) == OTHER
    monkeypatch.setattr(database, "generator", lambda: "another version")
    assert database.find(PRODUCT, F32) == OTHER  # still computes the same
    assert put(GOOD, 5.0), "a time of the generator as it is now replaces an older one"
    assert not put(OTHER, 6.0)
    assert database.find(PRODUCT, F32) == GOOD


def test_text_is_exchanged(tmp_path, monkeypatch):
    text = tmp_path / "schedules.txt"
    put(GOOD, 0.125)
    put(Schedule.parse("m:1, n:1, k:1"), 0.5, matmul(2, 3, 4), np.float64, packed="before")
    exchange.export_text(text)
    lines = text.read_text().splitlines()
    assert lines[0].split("\t") == list(database.COLUMNS)
    assert lines[1:] == sorted(lines[1:]) and len(lines) == 3
    assert "matmul  m:6 n:8 | k:4; C[8 m + 1 n] += A[4 m + 1 k] * B[8 k + 1 n]\tfloat32\tno\t" in lines[2]
    assert lines[2].endswith("\tm:1 parallel, k:1, n:1 vector\t0.125\ta test")

    monkeypatch.setenv("ZNN_SCHEDULES", str(tmp_path / "elsewhere" / "a?b#c.sqlite"))
    put(OTHER, 0.25)
    assert exchange.import_text(text) == (2, []) and exchange.import_text(text) == (0, [])
    assert database.find(PRODUCT, F32) == GOOD
    exchange.export_text(tmp_path / "again")
    assert (tmp_path / "again").read_text() == text.read_text()
    assert put(OTHER, 0.1) and exchange.import_text(text) == (0, [])


def test_a_time_of_another_version_does_not_replace_one_of_this(tmp_path, monkeypatch):
    with monkeypatch.context() as older:
        older.setattr(database, "generator", lambda: "older")
        put(GOOD, 1.0)
        exchange.export_text(tmp_path / "older")
    put(OTHER, 2.0)
    assert exchange.import_text(tmp_path / "older") == (0, [])
    assert database.find(PRODUCT, F32) == OTHER


@pytest.mark.parametrize("change, reason", [
    (lambda lines: [], "expected the columns contraction, dtype"),
    (lambda lines: [*lines[:2], lines[2].replace("\t", " ", 1)], "line 3: expected 9 columns, found 8"),
    (lambda lines: [*lines[:2], lines[2].replace("vector", "sideways")], "line 3: cannot read the loop"),
    (lambda lines: [*lines[:2], lines[2].replace("0.125", "-1")], "line 3: seconds: expected a positive number"),
], ids=["empty", "columns", "schedule", "seconds"])
def test_a_faulty_text_changes_nothing(tmp_path, change, reason):
    put(contraction=matmul(2, 8, 4))
    put(GOOD, 0.125)
    text = tmp_path / "text"
    exchange.export_text(text)
    text.write_text("".join(line + "\n" for line in change(text.read_text().splitlines())))
    for m in (2, 6):
        database.drop(matmul(m, 8, 4), F32)
    with pytest.raises(ValueError, match=reason):
        exchange.import_text(text)
    assert database.find(matmul(2, 8, 4), F32) is None


def test_what_is_no_schedule_or_no_time_is_refused():
    with pytest.raises(IllegalSchedule, match="dimension k is not visited"):
        put(Schedule.parse("m:1, n:1"))
    for seconds in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="expected a positive number"):
            put(seconds=seconds)


@pytest.mark.parametrize("text", ["m:1, n:1", "nonsense", "m:1, n:1, k:99999999999", "m:1, n:1, k:" + "9" * 5000])
def test_an_illegal_entry_is_named_once_and_left_out(own_file, text):
    put()
    execute(own_file, "UPDATE schedules SET schedule = ?", (text,))
    with pytest.warns(UserWarning, match="is not used") as caught:
        assert database.find(PRODUCT, F32) is None
        assert database.find(PRODUCT, F32) is None
    message, = (str(w.message) for w in caught)
    assert repr(text) in message and "matmul  m:6 n:8 | k:4" in message
    assert put(OTHER, 0.5) and database.find(PRODUCT, F32) == OTHER


def test_a_sum_over_parallel_tasks_is_only_used_where_its_copies_are_added_up():
    put(PARALLEL_SUM)
    assert database.find(PRODUCT, F32) == PARALLEL_SUM
    with pytest.warns(UserWarning, match="split over parallel tasks"):
        assert database.find(PRODUCT, F32, epilogue=Epilogue(bias=True)) is None


@pytest.mark.parametrize("damage", [
    lambda path: path.write_bytes(b"no database at all, but some text" * 99),
    lambda path: path.write_bytes(path.read_bytes()[:4096]),
    lambda path: path.write_bytes(path.read_bytes()[:100] + b"\xff" * 9000),
    lambda path: execute(path, "ALTER TABLE schedules RENAME COLUMN schedule TO other"),
], ids=["text", "cut short", "overwritten", "other columns"])
def test_a_damaged_file_is_named_once_and_left_alone(own_file, damage, tmp_path):
    put()
    damage(own_file)
    before = own_file.read_bytes()
    with pytest.warns(UserWarning) as caught:
        assert database.find(PRODUCT, F32) is None
        assert database.find(matmul(6, 8, 5), F32) is None
    message, = (str(w.message) for w in caught)
    assert str(own_file) in message and "move the file away" in message and "default schedules are used" in message
    with pytest.raises(OSError, match="cannot be written"):
        put()
    with pytest.raises(OSError, match="cannot be read"):
        exchange.export_text(tmp_path / "text")
    assert own_file.read_bytes() == before and not (tmp_path / "text").exists()


def test_an_empty_file_is_an_empty_database(own_file):
    own_file.parent.mkdir(parents=True)
    own_file.touch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert database.find(PRODUCT, F32) is None
    assert put() and database.find(PRODUCT, F32) == GOOD


def test_a_place_that_cannot_be_written_to(own_file, monkeypatch, tmp_path):
    put()
    monkeypatch.setenv("ZNN_SCHEDULES", str(own_file / "below a file"))
    assert database.find(PRODUCT, F32) is None
    with pytest.raises(OSError, match="below a file: the database of schedules cannot be written"):
        put()
    monkeypatch.setenv("ZNN_SCHEDULES", "0")
    assert database.find(PRODUCT, F32) is None and not put() and not database.drop(PRODUCT, F32)


def test_a_file_that_is_only_readable_is_read(own_file):
    put()
    own_file.chmod(0o400)
    own_file.parent.chmod(0o500)
    try:
        assert database.find(PRODUCT, F32) == GOOD
        if os.getuid():  # root writes anywhere
            with pytest.raises(OSError, match="cannot be written"):
                put(OTHER, 0.5)
    finally:
        own_file.parent.chmod(0o700)


def store_many(first):
    for i in range(first, 40, 2):
        put(contraction=matmul(6, 8, i + 1))
        put(seconds=1 / (1 + i))


def store_forever(started):
    for i in range(10 ** 9):
        put(seconds=1 / (1 + i), contraction=matmul(6, 8, 1 + i % 50))
        if i == 0:
            started.send(True)


def test_two_processes_write_at_once():
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=store_many, args=(first,)) for first in (0, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert all(database.find(matmul(6, 8, k), F32) == GOOD for k in range(1, 41))
    assert not put(seconds=1 / 39), "the best of all is kept"


@pytest.mark.parametrize("delay", [0.0, 0.003, 0.011])
def test_a_writer_that_is_killed_leaves_a_whole_database(own_file, delay):
    context = multiprocessing.get_context("spawn")
    started, end = context.Pipe(duplex=False)
    worker = context.Process(target=store_forever, args=(end,))
    worker.start()
    end.close()
    assert started.recv()
    worker.join(delay)
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert database.find(matmul(6, 8, 1), F32) == GOOD
    assert put(seconds=1e-12, contraction=matmul(6, 8, 1))
    with sqlite3.connect(own_file) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


def test_a_kill_in_the_middle_of_a_transaction_is_undone(own_file):
    """A journal that was left behind, as by a kill between two writes to the file, is rolled back by a reader."""
    put()
    with sqlite3.connect(own_file, isolation_level=None) as db:
        db.execute("PRAGMA cache_size = 1")
        db.execute("PRAGMA cache_spill = 1")
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE schedules SET schedule = 'nonsense'")
        db.execute("CREATE TABLE filler AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 500) "
                   "SELECT randomblob(1000) FROM n")  # more than the cache holds: the file is written before the end
        journal = own_file.with_name(own_file.name + "-journal")
        left = own_file.read_bytes(), journal.read_bytes()
        db.execute("ROLLBACK")
    db.close()
    for path, content in zip((own_file, journal), left):
        path.write_bytes(content)
    assert b"nonsense" in left[0], "the file holds what was not committed"
    assert database.find(PRODUCT, F32) == GOOD


def test_convolutions_use_what_is_stored_and_compute_the_same(monkeypatch):
    rng = np.random.default_rng(0)
    x, w, grad = (rng.standard_normal(s).astype(F32) for s in ((1, 3, 3, 12, 40), (5, 3, 2, 3, 3), (1, 5, 2, 10, 38)))
    made = []
    kernel = request.kernel
    monkeypatch.setattr(request, "kernel",
                        lambda c, s, *a, **k: made.append((c, s, k["packed"])) or kernel(c, s, *a, **k))

    def passes():
        made.clear()
        y = conv.forward(x, w)
        return y, *conv.backward(x, w, y, grad)[:2]

    plain, rules = passes(), list(made)
    assert {c.name for c, _, _ in rules} == {"conv_forward", "conv_backward_data", "conv_backward_weights"}
    for c, s, packed in rules:
        one_task = Schedule(tuple(Loop(x.dim, x.step, x.mark.replace("parallel", "")) for x in s.loops))
        put(one_task, 1.0, c, packed=packed)
    tuned = passes()
    assert all(s != t for (_, s, _), (_, t, _) in zip(rules, made))
    assert [t for _, t, _ in made] == [database.find(c, F32, packed) for c, _, packed in rules]
    for a, b in zip(plain, tuned):
        assert np.allclose(a, b, atol=1e-4)


def test_a_schedule_that_divides_the_callers_tasks_is_not_used():
    c = points_forward(5, 3, 4, 3, (0, 20), 1, 48, 48)
    asked = request.Request(c, default.spatial, target.current(), F32, "before", task="p")
    good = Schedule.parse("p:1 parallel, co:1, ci:1, kx:1, x:1 vector")
    put(good, 1.0, c, packed="before")
    assert database.schedule_for(c, asked.rule, asked.where, F32, "before", "p") == good
    put(Schedule.parse("p:1 parallel, co:1 parallel, ci:1, kx:1, x:1 vector"), 0.5, c, packed="before")
    with pytest.warns(UserWarning, match="every p must be a task of its own"):
        assert database.schedule_for(c, asked.rule, asked.where, F32, "before", "p") == asked.default()


def test_what_this_process_stores_or_drops_is_looked_up_again_and_else_nothing_is(monkeypatch):
    looked = []
    find = database.find
    monkeypatch.setattr(database, "find", lambda c, *rest: looked.append(c.name) or find(c, *rest))
    x, w = np.ones((1, 3, 1, 40, 40), F32), np.ones((4, 3, 1, 3, 3), F32)

    def asked():
        looked.clear()
        conv.forward(x, w)
        return bool(looked)

    assert asked() and not asked()
    put()
    assert asked() and not asked()
    database.drop(PRODUCT, F32)
    assert asked() and not asked()
    database.forget()
    assert asked()


@given(contractions())
def test_contractions_are_read_back(c):
    text = database._key(c, F32, None, target.current())[0]
    assert exchange.contraction(text) == c


def spoil(path, contraction, **columns):
    """Change columns of an entry behind the database's back."""
    text = database._key(contraction, F32, None, target.current())[0]
    for column, value in columns.items():
        execute(path, f"UPDATE schedules SET {column} = ? WHERE contraction = ?", (value, text))


def test_entries_that_no_kernel_can_be_made_of_are_dropped_and_named(own_file, tmp_path):
    products = [matmul(6, 8, k) for k in range(1, 6)]
    for c in products:
        put(contraction=c)
    points = points_forward(5, 3, 4, 3, (0, 20), 1, 48, 48)
    put(Schedule.parse("p:1 parallel, co:1 parallel, ci:1, kx:1, x:1 vector"), 1.0, points, packed="before")
    for c, change in zip(products[1:], ({"schedule": "m:1, n:1"}, {"schedule": "none"}, {"target": "mmx"},
                                        {"dtype": "floaty"})):
        spoil(own_file, c, **change)
    exchange.export_text(tmp_path / "spoilt")
    reasons = {entry.contraction.split(";")[0]: reason for entry, reason in exchange.prune()}
    assert len(reasons) == 5 and len(exchange.entries()) == 1 and exchange.prune() == []
    for found, reason in zip(sorted(reasons), ("k is not visited", "cannot read", "unknown target", "floaty", "own")):
        assert reason in reasons[found], found
    assert database.find(products[0], F32) == GOOD

    lines = [line for line in (tmp_path / "spoilt").read_text().splitlines() if "none" not in line]
    (tmp_path / "spoilt").write_text("\n".join(lines) + "\n")
    database.drop(products[0], F32)
    taken, left_out = exchange.import_text(tmp_path / "spoilt")
    assert taken == 1 and len(left_out) == 4 and len(exchange.entries()) == 1


def test_pruning_a_database_without_faults_does_not_write_it(own_file):
    assert exchange.prune() == [] and not own_file.exists()
    put()
    before = own_file.stat().st_mtime_ns
    assert exchange.prune() == [] and own_file.stat().st_mtime_ns == before


def test_what_nobody_measured_gives_way_to_what_was_measured(tmp_path):
    assert put(GOOD, None) and database.known(PRODUCT, F32).seconds == float("inf")
    exchange.export_text(tmp_path / "text")
    assert put(OTHER, 5.0) and not put(GOOD, None)
    assert exchange.import_text(tmp_path / "text") == (0, [])
    assert database.find(PRODUCT, F32) == OTHER
    assert put(GOOD, 6.0, replace=True) and database.find(PRODUCT, F32) == GOOD
    assert database.known(PRODUCT, F32).seconds == 6.0 and database.known(matmul(1, 2, 3), F32) is None

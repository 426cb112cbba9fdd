"""tune.py as a user runs it: what it stores, writes and prints, how it stops and goes on, what it refuses."""
import dataclasses
import hashlib
import json
import os
import random
import signal
import sqlite3
import sys

import pytest
import torch

import models
import tune
from conf.entry import GROUPS
from conf.schema import Tune
from tests.znn.pipeline.tiny import tiny
from znn.nn import field_of_view
from znn.runtime import database, exchange
from znn.tuner import measuring, tuning
from znn.tuner.moves import neighbour
from znn.tuner.table import Result

SEARCH = ("model=n4", "mode=search", "search=random", "seconds=0.05", "output=[2,3,20]")


class Small(torch.nn.Sequential):
    """The small network of the pipeline's tests, as `models.build` gives networks."""

    def __init__(self, channels=1):
        super().__init__(*tiny(channels))
        self.in_channels, self.field_of_view = channels, field_of_view(self, channels)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to run commands in, on a small network, with a database of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZNN_SCHEDULES", str(tmp_path / "data" / "schedules.sqlite"))
    monkeypatch.setattr(models, "build", lambda name, options: Small(2 if options.get("recursive") else 1))
    database.forget()
    yield tmp_path
    database.forget()


@pytest.fixture
def measured(monkeypatch):
    """Schedules that were "measured": times follow from their text, and what is not the default is often faster."""
    asked = []

    def result(self, problem, schedule):
        asked.append(schedule)
        digest = hashlib.sha256(f"{problem.contraction} {schedule}".encode()).digest()[0]
        return Result(1e-3 if schedule == problem.start else 1e-3 * (0.5 + digest / 256), 0.5)

    monkeypatch.setattr(measuring.Measurer, "measure", result)
    monkeypatch.setattr(measuring.Measurer, "again", lambda self, problem, schedules, patience:
                        [result(self, problem, s) for s in schedules])
    return asked


def command(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["tune.py", *arguments])
    tune.main()


def test_kernels_are_measured_stored_and_reported(folder, monkeypatch, capsys):
    command(monkeypatch, *SEARCH)
    said, entries = capsys.readouterr().out, exchange.entries()
    content = json.loads((folder / "tuning/n4_2x3x20/tuning.json").read_text())
    assert f"{len(entries)} kernels, 0 of them tuned already" in said
    assert sorted(k["contraction"] for k in content["kernels"]) == sorted(e.contraction for e in entries)
    assert {k["which"] for k in content["kernels"]} == {"forward", "data", "weights"}
    for kernel in content["kernels"]:
        assert kernel["measurements"] >= 1 and 0 < kernel["after"] <= kernel["before"]
        assert (kernel["source"] == "default") == (kernel["schedule"] == kernel["default"])
        assert kernel["name"] in said and kernel["curve"][0][1] > 0
    assert content["together"]["before"] == pytest.approx(sum(k["step_before"] for k in content["kernels"]))
    assert sorted(os.listdir("tuning/n4_2x3x20")) == ["progress.png", "tuning.csv", "tuning.json"]
    lines = (folder / "tuning/n4_2x3x20/tuning.csv").read_text().splitlines()
    assert len(lines) == 1 + len(entries) and lines[0].startswith("name,which,contraction,default,schedule,before")
    assert {e.source for e in entries} <= {"default", "random"} and all(0 < e.seconds < 1 for e in entries)


def test_what_is_tuned_is_left_alone_unless_asked_for_again(folder, monkeypatch, capsys, measured):
    command(monkeypatch, *SEARCH)
    first, table = exchange.entries(), capsys.readouterr().out.splitlines()[1:]
    measured.clear()
    command(monkeypatch, *SEARCH)
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith(f"{len(first)} kernels, {len(first)} of them tuned already")
    assert said[1:] == table and not measured and exchange.entries() == first
    command(monkeypatch, *SEARCH, "again=true", "seed=1", "report=null")
    assert len(measured) > len(first) and len(exchange.entries()) == len(first)
    assert all(new.seconds <= old.seconds for new, old in zip(exchange.entries(), first)), "the known one competes"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_what_was_found(folder, monkeypatch, capsys, measured, number):
    again, left = measuring.Measurer.again, 2

    def kill(self, *arguments, **options):
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), number)
        return again(self, *arguments, **options)

    monkeypatch.setattr(measuring.Measurer, "again", kill)
    with pytest.raises(SystemExit) as stop:
        command(monkeypatch, *SEARCH)
    kept = exchange.entries()
    assert len(kept) == 2
    assert str(stop.value).startswith(f"error: stopped by {number.name}; 2 of ")
    assert str(stop.value).endswith("python tune.py model=n4 mode=search search=random seconds=0.05 'output=[2,3,20]'")
    assert "kernels are not in this table" in capsys.readouterr().out
    command(monkeypatch, *SEARCH)
    said = capsys.readouterr().out
    assert " 2 of them tuned already" in said and "not in this table" not in said
    assert set(kept) < set(exchange.entries())


def test_a_search_that_is_stopped_stores_its_best_so_far(folder, monkeypatch, measured):
    result = measuring.Measurer.measure

    def stop(self, problem, schedule):
        if len(measured) == 30:
            os.kill(os.getpid(), signal.SIGINT)
        return result(self, problem, schedule)

    monkeypatch.setattr(measuring.Measurer, "measure", stop)
    with pytest.raises(SystemExit, match="1 of"):
        command(monkeypatch, *SEARCH, "seconds=100")
    entry, = exchange.entries()
    assert entry.source == "random" and entry.seconds < 1e-3


def test_the_policy_alone_is_stored_unmeasured_and_measured_later(folder, monkeypatch, capsys, measured):
    monkeypatch.setattr(tuning, "best", lambda problem: neighbour(problem, problem.start, random.Random(0)))
    command(monkeypatch, "model=n4", "mode=policy", "output=[2,3,20]")
    proposed = exchange.entries()
    assert not measured and proposed and {(e.seconds, e.source) for e in proposed} == {(float("inf"), "policy")}
    assert "changed" in capsys.readouterr().out and not os.path.exists("tuning/n4_2x3x20/progress.png")
    command(monkeypatch, "model=n4", "mode=policy", "output=[2,3,20]")
    assert f"{len(proposed)} of them tuned already" in capsys.readouterr().out
    command(monkeypatch, *SEARCH)
    assert "0 of them tuned already" in capsys.readouterr().out
    assert all(e.seconds < 1 for e in exchange.entries()) and len(exchange.entries()) == len(proposed)


def test_a_network_that_reads_a_map_is_tuned_with_the_one_that_makes_it(folder, monkeypatch, capsys, measured):
    monkeypatch.setattr(models, "build", lambda name, options: Small(2 if name == "VD2D3D" else 1))
    command(monkeypatch, "model=vd2d3d_recursive", *SEARCH[1:], "passes=[forward]")
    content = json.loads((folder / "tuning/vd2d3d_recursive_2x3x20/tuning.json").read_text())
    assert {e.contraction.split("  ")[0] for e in exchange.entries()} <= {"conv_forward", "points_forward"}
    assert {e.contraction.split("ci:")[1][:1] for e in exchange.entries()} == {"1", "2", "3"}, "inputs of either"
    assert {k["which"] for k in content["kernels"]} == {"forward"}


def test_the_database_is_shown_and_exchanged(folder, monkeypatch, capsys, measured):
    command(monkeypatch, *SEARCH, "report=null")
    entries = exchange.entries()
    assert not (folder / "tuning").exists()
    with sqlite3.connect(database.file()) as db:
        db.execute("UPDATE schedules SET schedule = 'x:1' WHERE contraction = ?", (entries[0].contraction,))
    db.close()
    command(monkeypatch, "list=true")
    said = capsys.readouterr().out
    assert f"{len(entries)} schedules in {database.file()}" in said and "this one" in said
    command(monkeypatch, "export_to=schedules.txt")
    said = capsys.readouterr()
    assert f"written: schedules.txt, {len(entries) - 1} schedules" in said.out
    assert "dropped from" in said.err and "'x:1'" in said.err and "is not visited" in said.err
    monkeypatch.setenv("ZNN_SCHEDULES", str(folder / "other.sqlite"))
    text = (folder / "schedules.txt").read_text().replace(entries[1].schedule, "x:1")
    (folder / "schedules.txt").write_text(text)
    command(monkeypatch, "import_from=schedules.txt")
    said = capsys.readouterr()
    spoilt = sum(e.schedule == entries[1].schedule for e in entries[1:])
    assert f"{len(entries) - 1 - spoilt} schedules" in said.out and said.err.count("not taken over") == spoilt


@pytest.mark.parametrize("overrides, environment, message", [
    ([], {}, "no value for model: give it as model=vd2d3d"),
    (["model=n4", "mode=search", "search=anealing"], {}, "did you mean annealing"),
    (["model=n4", "mode=serch"], {}, "did you mean search"),
    (["model=n4", "passes=[forwards]"], {}, "did you mean forward"),
    (["model=n4", "passes=[]"], {}, "found none"),
    (["model=n4", "seconds=0"], {}, "seconds: expected a number above 0"),
    (["model=n4", "total_seconds=-1"], {}, "total_seconds: expected a number above 0"),
    (["model=n4", "output=[1,2]"], {}, "expected three numbers"),
    (["model=n4", "threads=1000"], {}, "threads: expected 0"),
    (["model=n4"], {"ZNN_SCHEDULES": "0"}, "ZNN_SCHEDULES=0 switches the database of schedules off"),
    (["model=n4"], {"ZNN_SCHEDULES": "/dev/null/s"}, "/dev/null/s: the database of schedules cannot be written"),
    (["model=n4"], {"ZNN_TARGET": "z80"}, "target 'z80' cannot run here"),
    (["import_from=nothing.txt"], {}, "nothing.txt: No such file"),
    (["export_to=nowhere/a.txt"], {}, "nowhere/a.txt: No such file"),
])
def test_what_is_not_possible_is_said_before_anything_is_tuned(folder, monkeypatch, measured, overrides, environment,
                                                               message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as stop:
        command(monkeypatch, *overrides)
    assert str(stop.value).startswith("error: ") and message in str(stop.value) and "\n" not in str(stop.value)
    assert not measured


def test_a_report_that_cannot_be_written_says_what_is_kept(folder, monkeypatch, measured):
    (folder / "tuning").touch()
    with pytest.raises(SystemExit, match=r"tuning/n4_2x3x20: cannot write the report there .* is stored all the same"):
        command(monkeypatch, *SEARCH)
    assert exchange.entries()


def test_a_search_of_an_absent_package_names_the_extra(folder, monkeypatch):
    def absent(problem, rng):
        import optunia  # noqa: F401
        yield problem.start

    monkeypatch.setitem(tuning.SEARCHES, "random", absent)
    with pytest.raises(SystemExit, match=r"needs optunia, of the extra `tune`"):
        command(monkeypatch, *SEARCH)


def test_help_explains_every_setting_and_names_every_model(monkeypatch, capsys):
    with pytest.raises(SystemExit) as end:
        command(monkeypatch, "--help")
    assert not end.value.code
    said = capsys.readouterr().out
    words = set(said.replace(",", " ").split())
    assert {field.name for field in dataclasses.fields(Tune)} <= words
    assert {path.stem for path in (GROUPS / "model").glob("*.yaml")} <= words

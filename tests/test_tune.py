"""tune.py as a command: what it finds is stored, computes the same, and is not sought again; what it refuses."""
import re
import sys

import pytest
import torch

import models
import tune
from znn.pipeline import engine
from znn.runtime import database, exchange

SMALL = ["model=n4", "output=[1,3,5]", "passes=[forward]", "mode=search", "search=random", "seconds=0.05"]


@pytest.fixture(autouse=True)
def stored(tmp_path, monkeypatch):
    """A database of its own, which convolutions have forgotten afterwards."""
    monkeypatch.setenv("ZNN_SCHEDULES", str(tmp_path / "schedules.sqlite"))
    database.forget()
    yield tmp_path
    monkeypatch.undo()
    database.forget()


def run(monkeypatch, capsys, *arguments):
    """Exit status or message, and what was printed."""
    monkeypatch.setattr(sys, "argv", ["tune.py", *arguments])
    try:
        tune.main()
        status = 0
    except SystemExit as stop:
        status = stop.code or 0
    return status, capsys.readouterr().out


def test_a_tuned_network_computes_what_the_untuned_does(stored, monkeypatch, capsys):
    torch.manual_seed(0)
    engine.use("znn", 0)
    net = models.build("N4", {}).eval()
    x = torch.randn(1, 1, 1, 97, 99)
    with torch.no_grad():
        before = net(x)
        status, text = run(monkeypatch, capsys, *SMALL, f"report={stored}")
        assert status == 0 and "together" in text
        assert exchange.entries()
        after = net(x)
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
    assert {p.name for p in stored.glob("*/*")} >= {"tuning.csv", "tuning.json", "progress.png"}

    kernels = len(exchange.entries())
    status, text = run(monkeypatch, capsys, *SMALL, f"report={stored}")
    assert status == 0 and f"{kernels} kernels, {kernels} of them tuned already" in text


def test_schedules_travel_as_text(stored, monkeypatch, capsys):
    assert run(monkeypatch, capsys, *SMALL, "report=null")[0] == 0
    before = exchange.entries()
    assert run(monkeypatch, capsys, f"export_to={stored / 'schedules.txt'}")[0] == 0
    monkeypatch.setenv("ZNN_SCHEDULES", str(stored / "other.sqlite"))
    assert run(monkeypatch, capsys, f"import_from={stored / 'schedules.txt'}")[0] == 0
    assert exchange.entries() == before


@pytest.mark.parametrize("arguments, message", [
    ([], "no value for model.*model=vd2d3d"),
    (["model=n4", "mode=search", "search=anealing"], "annealing"),
    (["model=n4", "mode=serach"], "search"),
    (["model=n4", "output=[0,1,1]"], "output.*above 0"),
    (["model=n4", "seconds=0"], "seconds"),
])
def test_what_is_wrong_is_named(monkeypatch, capsys, arguments, message):
    status, _ = run(monkeypatch, capsys, *arguments)
    assert isinstance(status, str)
    assert re.search(message, status)


def test_without_a_database_there_is_nothing_to_tune(monkeypatch, capsys):
    monkeypatch.setenv("ZNN_SCHEDULES", "0")
    status, _ = run(monkeypatch, capsys, "model=n4")
    assert "ZNN_SCHEDULES=0 switches the database of schedules off" in status

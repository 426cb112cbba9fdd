"""Speeds and the time left, by a clock that the test sets."""
import time

import pytest

from znn.pipeline.meter import Meter


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def tell(meter, seconds, *block):
        now[0] += seconds
        meter(*block)
    return tell


def test_the_time_left_is_of_each_stage_by_its_own_speed(clock):
    meter = Meter({"fast": 40_000, "slow": 20_000}, hidden=True)
    clock(meter, 1, "fast", 10_000, False)
    assert meter.left() is None and meter.predicted is None
    clock(meter, 5, "slow", 10_000, False)
    assert meter.left() == 3 * 1 + 5 and meter.predicted == 6 + 8
    clock(meter, 3, "fast", 30_000, False)
    clock(meter, 6, "slow", 10_000, False)
    assert meter.left() == 0
    assert meter.speeds() == "fast 10 kvoxel/s, slow 1.82 kvoxel/s; predicted 14 s, taken 15 s"


def test_what_an_earlier_run_finished_counts_neither_for_speed_nor_for_the_time_left(clock):
    meter = Meter({"fast": 40_000, "slow": 20_000}, hidden=True)
    clock(meter, 50, "fast", 40_000, True)
    clock(meter, 50, "slow", 10_000, True)
    clock(meter, 2, "slow", 500, False)
    assert meter.predicted is None                 # a twentieth of what is to be done is too little
    clock(meter, 2, "slow", 500, False)
    assert meter.kept == 50_000 and meter.left() == 9_000 * 4 / 1000 and meter.predicted == 40
    assert "fast" not in meter.speeds()


def test_nothing_to_do_is_said(clock):
    meter = Meter({"a": 10}, hidden=True)
    meter("a", 10, True)
    assert meter.speeds() == "nothing was left to compute"


def test_the_bar_shows_speed_and_time_left(capsys):
    with Meter({"a": 2000}) as meter:
        meter("a", 1000, False)
        meter.bar.refresh()
    assert "kvoxel/s, about 00:00 left" in capsys.readouterr().err

import dataclasses
import hashlib
import itertools
import math
import random

import numba
import numpy as np
import pytest
import torch

import models
from tests.znn.tuner.problems import forward
from znn.codegen import target
from znn.codegen.plan import Epilogue
from znn.loops import Schedule
from znn.nn import layers, use_engine
from znn.runtime import database, exchange
from znn.tuner import report, tuning
from znn.tuner.errors import TuningError
from znn.tuner.moves import neighbour
from znn.tuner.settling import finalists
from znn.tuner.table import Result
from znn.tuner.tuning import Effort, Outcome, kernels, tune, tuned
from znn.tuner.workloads import Workload, of_network


@pytest.fixture(autouse=True)
def own_database(tmp_path, monkeypatch):
    monkeypatch.setenv("ZNN_SCHEDULES", str(tmp_path / "schedules.sqlite"))
    database.forget()
    yield
    database.forget()


def workload(name="layer", extent=(2, 5, 21), times=1):
    return Workload(name, "3x3", "forward", forward(target.current(), extent), times)


class Faster:
    """A measurer to which whatever is not the default is faster, by `gain`, give or take `spread`."""

    def __init__(self, gain=2.0, spread=0.0):
        self.gain, self.spread, self.asked = gain, spread, 0

    def measure(self, problem, schedule):
        self.asked += 1
        digest = hashlib.sha256(str(schedule).encode()).digest()[0] / 2560
        return Result(1.0 if schedule == problem.start else (1 + digest) / self.gain, 0.4, self.spread)

    def again(self, problem, schedules, patience):
        return [self.measure(problem, schedule) for schedule in schedules]


class Failing(Faster):
    def measure(self, problem, schedule):
        return Result(failure="no such luck")


def run(workloads, measurer, stopped=lambda: False, **effort):
    effort = Effort(**{"mode": "search", "search": "random", "seconds": 20} | effort)
    return list(tune(workloads, effort, stopped, measurer, itertools.count().__next__))


def test_the_winner_is_stored_and_used():
    w = workload()
    assert not tuned(w.problem)
    outcome, = run([w], Faster())
    assert outcome.schedule != outcome.default and outcome.source == "random"
    assert outcome.before == 1.0 and 0.5 <= outcome.after < 0.56
    assert outcome.curve[0][1] == 1.0 and all(a[1] > b[1] for a, b in itertools.pairwise(outcome.curve))
    assert tuned(w.problem)
    assert str(database.find(w.problem.contraction, w.problem.dtype, "before")) == outcome.schedule


@pytest.mark.parametrize("gain, spread, better", [(1.2, 0.0, True), (1.2, 0.01, True), (1.2, 0.2, False),
                                                  (0.8, 0.0, False)])
def test_only_what_is_surely_faster_replaces_the_default(gain, spread, better):
    w = workload()
    outcome, = run([w], Faster(gain, spread))
    entry = tuning.stored(w.problem)
    assert (entry.schedule != str(w.problem.start)) == better == (outcome.source != "default")
    assert entry.source == outcome.source and tuned(w.problem), "a kernel whose default is best is tuned, too"


def test_what_is_stored_competes_when_it_is_tuned_again():
    w = workload()
    first, = run([w], Faster(3.0))
    again, = run([w], Faster(0.5), again=True)
    assert again.schedule == again.default, "measured anew, it lost"
    run([w], Faster(3.0), again=True, seed=1)
    assert tuning.stored(w.problem).source == "random" and first.source == "random"


def test_a_total_is_divided_evenly_over_what_is_left():
    three = [workload(extent=(1, 5, x)) for x in (20, 21, 22)]
    tried = [o.measurements for o in run(three, Faster(), seconds=100, total_seconds=90)]
    assert len(tried) == 3 and max(tried) <= min(tried) + 2 and sum(tried) < 90
    assert [o.measurements for o in run(three, Faster(), seconds=20, total_seconds=900, again=True)] < tried
    assert 0 < len(run([workload(extent=(1, 7, x)) for x in range(20, 60)], Faster(), total_seconds=60)) < 40


def test_a_default_that_cannot_be_measured_is_an_error():
    with pytest.raises(TuningError, match="layer: its default schedule cannot be measured: no such luck"):
        run([workload()], Failing())
    assert not exchange.entries()


def test_stopped_before_anything_was_found_stores_nothing():
    assert run([workload()], Faster(), stopped=lambda: True) == []
    measurer = Faster()
    assert run([workload(), workload()], measurer, stopped=lambda: measurer.asked > 0) == []
    assert not exchange.entries()


def test_kernels_that_share_an_entry_are_tuned_once_the_costly_ones_first():
    problem = dataclasses.replace(workload().problem, epilogue=Epilogue(bias=True))
    plain = Workload("other", "3x3", "forward", problem, 3)
    small, large = workload("layer", times=2), workload("large", (4, 50, 50))
    assert [(w.name, w.times) for w in kernels([small, large, plain])] == [("large", 1), ("layer", 5)]


def test_a_step_spends_in_a_kernel_what_its_runs_take():
    w = workload(times=6)
    assert w.of_passes(0.5) == 3.0
    threads = numba.get_num_threads()
    at_points = Workload("p", "", "weights", dataclasses.replace(w.problem, calls=2, threads=1), 6)
    assert at_points.of_passes(0.5) == pytest.approx(6 * 0.5 / 2 / threads)


def apart(one, other):
    """Relative root mean square: where two voxels of a pool are equal up to rounding, all of a gradient goes to one or
    the other, and the largest difference says nothing."""
    return np.linalg.norm(one - other) / np.linalg.norm(other)


def test_a_tuned_network_computes_what_the_untuned_does(monkeypatch):
    net = models.build("N4")
    torch.manual_seed(0)
    held = [n + f - 1 for n, f in zip((1, 5, 5), net.field_of_view)]
    x = torch.randn(1, 1, *held)

    def strategy(problem, rng):
        yield problem.start
        yield neighbour(problem, neighbour(problem, problem.start, rng), rng)

    def results():
        net.zero_grad()
        given = x.clone().requires_grad_()
        y = net(given)
        y.square().sum().backward()
        return [y.detach().numpy(), given.grad.numpy(), *(p.grad.numpy().copy() for p in net.parameters())]

    untuned = results()
    use_engine("torch")
    try:
        expected = results()
    finally:
        use_engine("znn")
    monkeypatch.setitem(tuning.SEARCHES, "random", strategy)
    workloads = kernels(of_network(layers(net, (1, 1, *held)), target.current()))
    outcomes = run(workloads, Faster())
    assert len(outcomes) == len(workloads) == len(exchange.entries())
    assert sum(o.schedule != o.default for o in outcomes) > len(outcomes) // 2
    found = {}
    find = database.find
    monkeypatch.setattr(database, "find", lambda c, *rest: found.setdefault(database.text(c), find(c, *rest)))
    for own, before, wanted in zip(results(), untuned, expected):
        assert apart(own, before) <= 1e-2 and apart(own, wanted) <= 1e-2
    assert {k: str(s) for k, s in found.items() if s} == {o.contraction: o.schedule for o in outcomes
                                                          if o.contraction in found}
    assert any(str(found[o.contraction]) != o.default for o in outcomes if o.contraction in found)


def outcome(name, before, after, **more):
    return Outcome(name, "forward", f"c {name}", "a", "b" if after != before else "a", before, after, 0.5, 0.6, before,
                   after, 12, 2.04, "policy" if after != before else "default", **more)


def test_the_table():
    some = [outcome("conv1 forward", 2e-3, 1e-3), outcome("conv2", 5e-5, 5e-5), Outcome("x", "data", "c", "a", "b",
                                                                                       source="policy", spent=0.1)]
    assert report.table(some) == """\
kernel         ms before   after   gain  peak before  after    tried  seconds  by
conv1 forward       2.00    1.00  2.00x         0.50   0.60       12      2.0  policy
conv2             0.0500  0.0500  1.00x         0.50   0.60       12      2.0  default
x                                                            changed      0.1  policy
together            2.05    1.05  1.95x                           24        4"""


def test_a_report_is_read_again_in_the_same_circumstances_alone(tmp_path):
    some = [outcome("one", 2e-3, 1e-3, curve=[(0.1, 1.0), (0.7, 0.5)]), outcome("two", 1e-3, 1e-3, curve=[(0.2, 1.0)])]
    about = {"title": "a network", "threads": 2}
    report.write(tmp_path / "deep" / "er", some, about)
    found = report.earlier(tmp_path / "deep" / "er", about)
    assert report.table(found.values()) == report.table(some) and list(found) == ["c one", "c two"]
    assert report.earlier(tmp_path / "deep" / "er", about | {"threads": 1}) == {}
    (tmp_path / "deep" / "er" / report.JSON).write_text("{")
    assert report.earlier(tmp_path / "deep" / "er", about) == report.earlier(tmp_path, about) == {}


def test_the_picture_shows_the_whole_by_its_time():
    some = [outcome("one", 3e-3, 1e-3, curve=[(0.1, 1.0), (0.5, 0.5)]), outcome("two", 1e-3, 1e-3, curve=[(0.2, 1.0)])]
    axes, = report.picture(some, "title").axes
    whole = axes.lines[-1]
    assert list(whole.get_xdata()) == [0.1, 0.2, 0.5, 2.04]
    assert list(whole.get_ydata()) == pytest.approx([1, 1, 4 / 2.5, 4 / 2.5])


def test_an_entry_of_another_generator_counts_as_not_tuned_but_competes(monkeypatch):
    w = workload()
    older = neighbour(w.problem, w.problem.start, random.Random(1))
    with monkeypatch.context() as m:
        m.setattr(database, "generator", lambda: "older")
        database.store(w.problem.contraction, older, 1e-9, "long ago", w.problem.dtype, w.problem.packed)
    assert not tuned(w.problem) and tuned(w.problem, measured=False)
    failed = Schedule.parse("x:1"), math.inf
    assert finalists(w.problem, [failed], tuning._known(w.problem)) == [w.problem.start, older]
    run([w], Faster())
    assert tuned(w.problem)

import dataclasses
import json
import math

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.znn.tuner.problems import at_points, forward, of_contraction
from znn.codegen import target
from znn.loops import Schedule, conv_backward_data, conv_backward_weights
from znn.tuner import bench, measuring
from znn.tuner.bench import Bench, Incorrect
from znn.tuner.measuring import Measurer, relative_error
from znn.tuner.moves import neighbours
from znn.tuner.peak import peak
from znn.tuner.problem import elements
from znn.tuner.table import Result, Table, Unmeasured

LAYER = (1, 6, 8, (2, 3, 3))


def all_problems():
    where = target.current()
    direct = [of_contraction(c, where) for c in (conv_backward_data(*LAYER, (3, 7, 23)),
                                                 conv_backward_weights(*LAYER, (2, 5, 21)))]
    return [forward(where), *direct, *at_points(where)]


@pytest.fixture(params=range(5), ids=["forward", "data", "weights", "points", "points weights"])
def problem(request):
    return all_problems()[request.param]


def test_a_problem_measured(problem):
    measurer = Measurer(patience=0.02)
    for schedule in (problem.start, neighbours(problem, problem.start)[0]):
        result = measurer.measure(problem, schedule)
        assert not result.failure
        assert 0 < result.share < 1.5 and 0 < result.seconds < math.inf and result.spread >= 0
        assert measurer.measure(problem, schedule) is result
    assert len(measurer.table) == 2


def test_kernels_compute_what_the_contraction_says(problem):
    c, checked = problem.contraction, Bench(problem)
    a, b = checked.a[-1].astype(float), checked.b[-1].astype(float)
    free = [d for d in c.dims if not d.reduction]
    place = [tuple(rng.integers(d.extent) for d in free) for rng in [np.random.default_rng(3)] for _ in range(9)]
    found = checked.kernel(neighbours(problem, problem.start)[1])
    found.out.fill(0)
    out = found()[-1]
    for index in place:
        at = dict(zip((d.name for d in free), index))
        total = checked.bias[c.bias.address(at)] if problem.epilogue.bias else 0
        for summed in np.ndindex(*(d.extent for d in c.dims if d.reduction)):
            point = at | dict(zip((d.name for d in c.dims if d.reduction), summed))
            if c.inside(point):
                total += a[c.a.address(point)] * b[c.b.address(point)]
        total = max(total, 0) if problem.epilogue.activation else total
        assert out[c.out.address(at)] == pytest.approx(total, abs=1e-4)


def test_a_wrong_kernel_is_a_failure(monkeypatch):
    problem, measurer = forward(target.current()), Measurer(patience=0.01)
    assert not measurer.measure(problem, problem.start).failure
    built = bench.LoadedKernel.__call__

    def wrong(self, times=1):
        out = built(self, times)
        out[0, 3] += 1
        return out

    monkeypatch.setattr(bench.LoadedKernel, "__call__", wrong)
    with pytest.raises(Incorrect):
        measurer._on(problem).kernel(problem.start)
    result = measurer.measure(problem, neighbours(problem, problem.start)[0])
    assert "differs by" in result.failure and result.share == 0 and result.seconds == math.inf


def test_what_is_not_written_is_a_failure(monkeypatch):
    problem = forward(target.current())
    checked = Bench(problem)
    monkeypatch.setattr(bench.driver, "run", lambda pieces: None)
    with pytest.raises(Incorrect):
        checked.kernel(problem.start)


def test_an_impossible_schedule_is_a_failure_with_its_reason():
    problem, measurer = forward(target.current()), Measurer()
    result = measurer.measure(problem, Schedule.parse("z:1, y:1, co:1, ci:1, ky:1, x:1"))
    assert "dimension kx is not visited" in result.failure and result.seconds == math.inf


def test_failures_of_the_compiler_are_results(monkeypatch):
    problem, measurer = forward(target.current()), Measurer(patience=0.01)
    measurer.measure(problem, problem.start)

    def fails(module, where):
        raise RuntimeError("LLVM says\nno")

    monkeypatch.setattr(bench.jit, "object_code", fails)
    assert measurer.measure(problem, neighbours(problem, problem.start)[0]).failure == "LLVM says no"


def test_times_are_relative_to_the_starts(monkeypatch):
    problem, measurer = forward(target.current()), Measurer()
    others = neighbours(problem, problem.start)[:3]
    told = iter([[1.0], [2.0, 1.8], [2.0, 2.2], [4.0, 2.0]])
    monkeypatch.setattr(measuring, "rounds", lambda kernels, *rest: [[share] for share in next(told)][:len(kernels)])
    shares = [measurer.measure(problem, schedule).share for schedule in others]
    start = measurer.table.get(problem, problem.start)
    assert np.array(shares) / start.share == pytest.approx([0.9, 1.1, 0.5])
    times = [measurer.measure(problem, schedule).seconds for schedule in others]
    assert start.seconds / np.array(times) == pytest.approx([0.9, 1.1, 0.5])


def test_winners_are_measured_again_in_turn_and_not_kept():
    problem, measurer = forward(target.current()), Measurer(patience=0.01)
    schedules = [problem.start, *neighbours(problem, problem.start)[:2]]
    results = measurer.again(problem, schedules, patience=0.01)
    assert [r.failure for r in results] == [""] * 3 and all(r.share > 0 for r in results)
    assert len(measurer.table) == 0


def test_threads_and_target_are_as_before():
    before = numba.get_num_threads(), target.current()
    problem = at_points(target.TARGETS[target.available()[-1]])[0]
    assert not Measurer(patience=0.01).measure(problem, problem.start).failure
    assert (numba.get_num_threads(), target.current()) == before


class Clock:
    """Time that passes when a kernel runs, and not otherwise."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    def kernel(self, seconds):
        seconds = iter(seconds)

        def run(times=1):
            for _ in range(times):
                self.now += next(seconds)

        return run


def repeated(value):
    while True:
        yield value


def test_rounds_end_when_the_second_kernel_is_slower_for_sure(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(measuring, "time", clock)
    fast, slow, reference = (clock.kernel(repeated(s)) for s in (1e-3, 2e-3, 1e-4))
    lengths = lambda kernels, lost: [len(r) for r in measuring.rounds(kernels, (reference, 1), 0.0, 1.0, lost)]  # noqa: E731
    assert lengths([fast, slow], 1.9) == [measuring.LOST_ROUNDS] * 2
    assert lengths([fast, slow], 2.1) == [measuring.MOST] * 2
    assert lengths([slow, fast], 0.6) == [measuring.MOST] * 2


def test_drift_of_the_clock_cancels(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(measuring, "time", clock)
    slow = [1 + 0.5 * math.sin(i) for i in range(200)]
    kernel, reference = clock.kernel(1e-3 * s for s in [1, *slow]), clock.kernel(1e-4 * s for s in slow)
    (ratios,) = measuring.rounds([kernel], (reference, 1000), 0.01, 1.0)
    assert ratios == pytest.approx([1e-4 / 1000 / 1e-3] * measuring.FEWEST)


def test_rounds_go_on_until_the_median_is_known(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(measuring, "time", clock)
    noisy = clock.kernel(1e-3 * (1 + 0.2 * (i % 3)) for i in range(10_000))
    (ratios,) = measuring.rounds([noisy], (clock.kernel(repeated(1e-4)), 1), 0.07, 1.0)
    assert measuring.FEWEST < len(ratios) < measuring.MOST and relative_error(ratios) < 0.07
    assert relative_error(ratios[:-1]) >= 0.07


def test_a_slow_kernel_is_run_once(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(measuring, "time", clock)
    (ratios,) = measuring.rounds([clock.kernel(repeated(3.0))], (clock.kernel(repeated(1e-4)), 1), 0.01, 0.5)
    assert len(ratios) == 1 and clock.now == pytest.approx(3.0001)


def test_short_kernels_run_several_times_at_once(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(measuring, "time", clock)
    calls = []

    def short(times=1):
        calls.append(times)
        clock.now += 1e-5 * times

    measuring.rounds([short], (clock.kernel(repeated(1e-4)), 1), 0.01, 0.5)
    assert calls == [1] + (1 + measuring.FEWEST) * [round(measuring.SHORTEST / 1e-5)]


def test_relative_error_of_normal_values():
    rng = np.random.default_rng(0)
    medians = [np.median(5 + rng.standard_normal(51)) for _ in range(2000)]
    errors = [relative_error((5 + rng.standard_normal(51)).tolist()) for _ in range(200)]
    assert np.mean(errors) == pytest.approx(np.std(medians) / 5, rel=0.1)


def test_the_peak_counts_what_it_does(on_target):
    run, operations = peak(2, steps=10)
    run()
    lanes = on_target.lanes(np.dtype(np.float32))
    assert operations == 2 * min(24, on_target.registers - 3) * 10 * lanes * 16


def test_a_table_is_replayed_from_its_file(tmp_path):
    problem, file = forward(), tmp_path / "deep" / "table.jsonl"
    table, other = Table(file), neighbours(problem, problem.start)[0]
    table.add(problem, problem.start, Result(1e-3, 0.5, 0.01))
    table.add(problem, other, Result(failure="too long"))
    table.add(problem, problem.start, Result(2e-3, 0.25, 0.02))
    again = Table(file)
    assert again.measure(forward(), problem.start) == Result(2e-3, 0.25, 0.02)
    assert again.get(problem, other) == Result(failure="too long")
    assert again.of(problem) == table.of(problem) and len(again.of(problem)) == len(again) == 2
    with pytest.raises(Unmeasured, match="has no time of"):
        again.measure(dataclasses.replace(problem, calls=2), problem.start)


def test_a_line_cut_short_is_left_out_and_not_continued(tmp_path):
    problem, file = forward(), tmp_path / "table.jsonl"
    Table(file).add(problem, problem.start, Result(1e-3, 0.5, 0.01))
    whole = file.read_text()
    file.write_text(whole + whole[:40])
    table = Table(file)
    assert len(table) == 1
    table.add(problem, neighbours(problem, problem.start)[0], Result(3e-3, 0.2, 0.01))
    assert [json.loads(line)["seconds"] for line in file.read_text().splitlines()] == [1e-3, 3e-3]


@pytest.mark.parametrize("line", ["{}", "nonsense", '{"problem": "p", "schedule": "s", "seconds": 1, "more": 2}'])
def test_a_table_that_is_none_says_where(tmp_path, line):
    file = tmp_path / "table.jsonl"
    file.write_text(f"{line}\n")
    with pytest.raises(ValueError, match="line 1: not a result"):
        Table(file)


@given(st.integers(1, 4), st.integers(1, 5))
def test_operands_hold_every_address(ci, co):
    c = conv_backward_data(1, ci, co, (1, 3, 2), (2, 4, 6))
    reach = [c.a.address(dict(zip(c.extents, i))) for i in np.ndindex(*c.extents.values())
             if c.inside(dict(zip(c.extents, i)))]
    assert 0 <= min(reach) and max(reach) < elements(c.a, c.extents)

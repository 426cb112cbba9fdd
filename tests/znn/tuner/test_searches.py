import hashlib
import itertools
import json
import math
import random

import numpy as np
import pytest

from tests.znn.tuner.problems import AVX512, F32, forward
from znn.loops import Schedule, matmul
from znn.tuner.moves import ACTIONS, neighbours
from znn.tuner.problem import Problem
from znn.tuner.searches import SEARCHES, Budget, best_so_far, finding, ranked, recipe, run
from znn.tuner.searches.bayesian import walked
from znn.tuner.searches.features import KINDS
from znn.tuner.searches.recipe import Step, applied
from znn.tuner.searches.run import REPEATS
from znn.tuner.table import Result, Table

ENDLESS = ("random", "annealing")
FEW = {"default": 1, "recipe": 2}  # schedules that a search has
EXTRA = {"annealing xgboost": "xgboost", "annealing xgboost 16": "xgboost", "bayesian": "optuna"}
RECIPE = (Step("ci", "outer", "split 2"), Step("n", "outer", "join"), Step("ci", "outer", "swap down"))


def small():
    """A problem of a few schedules."""
    return Problem(matmul(2, 1, 3), Schedule.parse("m:1 parallel, k:1"), AVX512, F32)


def cost(problem, schedule):
    """A time that has nothing to do with any clock; every seventh schedule fails."""
    digest = hashlib.sha256(str(schedule).encode()).digest()
    if schedule != problem.start and digest[0] % 7 == 0:
        return Result(failure="unlucky")
    return Result((1 + digest[1] / 256) * len(schedule.loops) * 1e-3, 0.5)


@pytest.fixture(autouse=True)
def recipes(monkeypatch):
    """A recipe for every kind here."""
    known = {"conv_forward": list(map(str, RECIPE)), "matmul": ["m outer: join"]}
    monkeypatch.setattr(recipe, "_recipes", lambda: known)


def found(name, problem, budget, seed=0, measure=cost):
    if name in EXTRA:
        pytest.importorskip(EXTRA[name])
    return list(run(SEARCHES[name], problem, measure, budget, random.Random(seed)))


@pytest.mark.parametrize("name", SEARCHES)
def test_what_is_found_is_possible_timed_once_and_begins_with_the_start(name):
    problem = forward()
    entries = found(name, problem, Budget(measurements=60))
    schedules = [schedule for schedule, _ in entries]
    assert schedules[0] == problem.start or name == "policy"  # which begins with what it would choose unmeasured
    assert problem.start in schedules and len(set(schedules)) == len(schedules)
    assert len(entries) == FEW.get(name, 60)
    for schedule, seconds in entries:
        assert problem.refusal(schedule) is None and seconds == cost(problem, schedule).seconds


@pytest.mark.parametrize("name", SEARCHES)
def test_the_same_seed_finds_the_same(name):
    once, again, other = (found(name, forward(), Budget(measurements=40), seed) for seed in (1, 1, 2))
    assert once == again
    assert (once == other) == (name in ("default", "recipe", "exhaustive"))


@pytest.mark.parametrize("name", SEARCHES)
def test_failures_do_not_end_a_search(name):
    problem = forward()

    def often(problem, schedule):
        return cost(problem, schedule) if schedule == problem.start else Result(failure="always")

    entries = found(name, problem, Budget(measurements=30), measure=often)
    assert all((seconds < math.inf) == (schedule == problem.start) for schedule, seconds in entries)
    assert len(entries) == FEW.get(name, 30)


@pytest.mark.parametrize("name", SEARCHES)
def test_a_small_space_ends(name):
    problem = small()
    everything = {schedule for schedule, _ in found("exhaustive", problem, Budget())}
    assert {schedule for schedule, _ in found(name, problem, Budget())} <= everything


def test_exhaustive_finds_all_that_moves_lead_to():
    problem = small()
    entries = found("exhaustive", problem, Budget())
    closed = {schedule for schedule, _ in entries}
    assert all(set(neighbours(problem, schedule)) <= closed for schedule in closed)
    marks = {("m:1", "k:1"): [s for s in closed if [x.dim for x in s.loops] == ["m", "k"]],
             ("k:1", "m:1"): [s for s in closed if [x.dim for x in s.loops] == ["k", "m"]]}
    assert len(closed) > 8 and all(marks.values())


def test_greedy_ends_where_no_move_is_better():
    problem = forward()
    entries = found("greedy 1", problem, Budget())
    *_, (best, seconds) = best_so_far(entries)
    assert seconds < entries[0][1]
    assert all(cost(problem, there).seconds >= seconds for there in neighbours(problem, best))


def test_greedy_descends_the_steepest_way():
    problem = forward()
    entries = found("greedy 1", problem, Budget())
    first = neighbours(problem, problem.start)
    assert {schedule for schedule, _ in entries[1:1 + len(first)]} == set(first)
    step = min(first, key=lambda s: cost(problem, s).seconds)
    second = set(neighbours(problem, step)) - {problem.start, *first}
    assert {schedule for schedule, _ in entries[1 + len(first):1 + len(first) + len(second)]} == second


def test_two_moves_see_over_a_hill():
    problem = small()
    near = neighbours(problem, problem.start)
    far = next(s for there in near for s in neighbours(problem, there) if s not in {problem.start, *near})
    measure = lambda _, s: Result(1.0 if s == far else 2.0 if s == problem.start else 3.0)  # noqa: E731
    best = {name: min(s for _, s in found(name, problem, Budget(), measure=measure))
            for name in ("greedy 1", "greedy 2")}
    assert best == {"greedy 1": 2.0, "greedy 2": 1.0}


@pytest.mark.parametrize("width", [2, 4])
def test_a_beam_goes_on_from_its_best(width):
    problem = forward()
    entries = found(f"beam {width}", problem, Budget(measurements=400))
    first = neighbours(problem, problem.start)
    best = sorted(first, key=lambda s: cost(problem, s).seconds)[:width]
    reached = {s for here in best for s in neighbours(problem, here)}
    level = [schedule for schedule, _ in entries[1 + len(first):]]
    new = reached - {problem.start, *first}
    assert set(level[:len(new)]) == new or set(level) < new


def test_annealing_prefers_the_better():
    """On a bowl around a schedule some moves away it comes nearer to it than random walks do."""
    problem = forward(extent=(2, 5, 40), channels=(24, 24))
    far, rng = problem.start, random.Random(5)
    for _ in range(12):
        far = rng.choice(neighbours(problem, far))
    wanted = list(map(str, far.loops))

    def bowl(_, schedule):
        loops = list(map(str, schedule.loops))
        return Result(math.exp(0.2 * len(set(loops) ^ set(wanted))) * 1e-3, 0.5)

    best = {name: np.median([min(s for _, s in found(name, problem, Budget(measurements=150), seed, bowl))
                             for seed in range(5)]) for name in ENDLESS}
    assert best["annealing"] < best["random"]


def test_seconds_are_a_budget_of_everything():
    ticks = itertools.count()
    entries = list(run(SEARCHES["random"], forward(), cost, Budget(seconds=10), random.Random(0), lambda: next(ticks)))
    assert len(entries) == 9  # the clock is read at the beginning and before every measurement


def test_a_search_that_repeats_itself_ends():
    asked = []

    def stubborn(problem, rng):
        while True:
            asked.append((yield problem.start))

    entries = list(run(stubborn, forward(), cost, Budget(), random.Random(0)))
    assert len(entries) == 1 and len(asked) == REPEATS + 1


def test_best_so_far():
    assert list(best_so_far([("a", 3.0), ("b", 4.0), ("c", 2.0)])) == [("a", 3.0), ("a", 3.0), ("c", 2.0)]
    assert list(best_so_far([])) == []


def bowl_to(problem, moves, seed):
    """A time that grows with the loops that a schedule does not share with one some moves away."""
    far, rng = problem.start, random.Random(seed)
    for _ in range(moves):
        far = rng.choice(neighbours(problem, far))
    return lambda _, s: Result(math.exp(0.2 * len(set(s.loops) ^ set(far.loops))) * 1e-3, 0.5)


@pytest.mark.parametrize("name", ["annealing xgboost 16", "bayesian"])
def test_what_learns_prefers_the_better(name):
    problem = forward(extent=(2, 5, 40), channels=(24, 24))
    best = {n: np.mean([min(s for _, s in found(n, problem, Budget(measurements=90), 0, bowl_to(problem, 8, far)))
                        for far in (2, 5)]) for n in (name, "random")}
    assert best[name] < best["random"]


@pytest.mark.parametrize("kind", KINDS)
def test_features_are_of_one_size_and_differ(kind):
    problem = forward()
    rows = [KINDS[kind](problem, s) for s in (problem.start, *neighbours(problem, problem.start))]
    assert {row.shape for row in rows} == {rows[0].shape} and np.isfinite(rows).all()
    assert len({row.tobytes() for row in rows}) > len(rows) / 2


def test_count_and_reuse_of_a_product_of_matrices():
    """m:4, k:3 of c[2 x 4] += a[4 x 3] b[3 x 2]: the loop over k reuses c, the one over m reuses b."""
    problem = Problem(matmul(4, 2, 3), Schedule.parse("m:1, n:1, k:1"), AVX512, F32)
    row = 2 ** KINDS["itervar"](problem, problem.start).reshape(20, -1) - 1
    innermost, outermost = row[0], row[2]
    assert outermost[:4] == pytest.approx([4, 0, 4, 24]) and innermost[:4] == pytest.approx([3, 2, 24, 3])
    count, reuse = outermost[[9, 12, 15]], outermost[[10, 13, 16]]
    assert count == pytest.approx([8, 12, 6]) and reuse == pytest.approx([3, 2, 4])


def test_recall():
    assert ranked.average_recall([3, 2, 1, 0], [4, 3, 2, 1], 4) == 1
    assert ranked.average_recall([0, 1], [1, 0], 2) == 0.5  # none of the best one, all of the best two
    assert ranked.average_recall([0, 1], [1, 0], 1) == 0


def test_a_walk_makes_a_move_where_it_is_legal():
    problem = forward()
    for action in ACTIONS[2:]:
        there = walked(problem, [(action, 1.0)])
        assert there == problem.start or there in neighbours(problem, problem.start)
    assert walked(problem, []) == problem.start


def test_a_recipe_skips_what_is_illegal():
    problem = forward()
    once = applied(RECIPE[:1], problem)
    assert once in neighbours(problem, problem.start) and applied(RECIPE[:2], problem) == once
    assert applied(RECIPE[1:2], problem) == problem.start
    assert [Step.parse(str(step)) for step in RECIPE] == list(RECIPE)


def test_the_shipped_recipes_are_of_this_space():
    for steps in json.loads(recipe.FILE.read_text()).values():
        assert all(Step.parse(step).action in map(str, ACTIONS[2:]) for step in steps)


def test_a_recipe_is_found_from_a_table_and_by_measuring():
    problems, good = [forward(channels=(c, 8)) for c in (6, 9, 12)], RECIPE[0]
    measure = lambda p, s: Result(1.0 if s == applied([good], p) else 2.0)  # noqa: E731
    table = Table()
    for problem in problems:
        for schedule in (problem.start, *neighbours(problem, problem.start)):
            table.add(problem, schedule, measure(problem, schedule))
    candidates = finding.proposed(problems, table)
    assert applied([candidates[0]], problems[0]) == applied([good], problems[0])
    steps, gain = finding.found(problems, candidates[:3], measure)
    assert len(steps) == 1 and gain == pytest.approx(math.log(2))

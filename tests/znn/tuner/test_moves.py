import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.znn.loops.nests import moves as every_move
from tests.znn.tuner.problems import AVX512, F32, at_points, forward, of_contraction, problems, walk
from znn.codegen.plan import Plan
from znn.loops import IllegalSchedule, Loop, Schedule, conv_backward_weights
from znn.tuner import problem as limits
from znn.tuner.moves import ACTIONS, FACTORS, VECTORS, State, act, mask, neighbour, neighbours


def split(contraction, schedule, i, factor):
    """A loop of `factor` times the step around loop i, marked as loop i; around a vector, as what is outside."""
    loop, size = schedule.loops[i], schedule.ranges(contraction)[i]
    outside = schedule.loops[i - 1].mark if i else ""
    mark = loop.mark if loop.mark != "vector" else "unroll" if outside == "unroll" else ""
    if loop.step * factor >= size:
        raise IllegalSchedule("no block of that size")
    around = Loop(loop.dim, loop.step * factor, mark)
    return Schedule((*schedule.loops[:i], around, *schedule.loops[i:])).check(contraction)


def expected(state, action):
    """Whether an action is legal, from the schedule's own moves and from `Plan` alone."""
    p, s, i = state.problem, state.schedule, state.cursor
    lanes = p.target.lanes(p.dtype)
    move = {"up": lambda: s.loops[i - 1] if i else s.loops[len(s.loops)], "down": lambda: s.loops[i + 1],
            "swap up": lambda: s.swap(p.contraction, i - 1), "swap down": lambda: s.swap(p.contraction, i),
            "join": lambda: s.join(p.contraction, i), "split": lambda: split(p.contraction, s, i, action.argument),
            "split lanes": lambda: split(p.contraction, s, i, action.argument * lanes),
            "mark": lambda: s.mark(p.contraction, i, action.argument)}[action.name]
    try:
        found = move()
        if action.name in ("up", "down"):
            return True
        plan = Plan(p.contraction, found, p.target, p.dtype, p.epilogue, p.packed)
    except (IllegalSchedule, IndexError):
        return False
    tasks = [str(loop) for loop in found.loops if loop.mark == "parallel"]
    own = not p.task or tasks == [f"{p.task}:1 parallel"]
    return found != s and own and (p.packed == "inside" or plan.copies == 1) and len(found.loops) <= limits.MAX_LOOPS


@given(problems(), st.integers(0, 2**32), st.integers(0, 12))
def test_the_mask_is_what_is_legal(problem, seed, steps):
    *_, state = walk(problem, random.Random(seed), steps)
    assert mask(state).tolist() == [expected(state, action) for action in ACTIONS]


@given(problems(), st.integers(0, 2**32))
def test_what_the_mask_allows_is_possible_and_what_it_forbids_raises(problem, seed):
    *_, state = walk(problem, random.Random(seed), 6)
    for action, legal in zip(ACTIONS, mask(state)):
        if legal:
            after = act(state, action)
            assert problem.refusal(after.schedule) is None
            assert after != state
        else:
            with pytest.raises(IllegalSchedule):
                act(state, action)


@given(problems())
def test_neighbours_are_all_that_one_move_of_a_schedule_makes(problem):
    factors = {*FACTORS, *(v * problem.target.lanes(problem.dtype) for v in VECTORS)}
    found = set()
    for name, *arguments in every_move(problem.start):
        if name != "split":
            found |= {s for s in [moved(problem, name, *arguments)] if s}
    for i in range(len(problem.start.loops)):
        found |= {s for f in factors for s in [moved(problem, "split", i, f)] if s}
    assert set(neighbours(problem, problem.start)) == found


@given(problems(), st.integers(0, 2**32))
def test_a_random_neighbour_is_one_of_them(problem, seed):
    assert neighbour(problem, problem.start, random.Random(seed)) in (neighbours(problem, problem.start)
                                                                      or [problem.start])


def moved(problem, name, *arguments):
    try:
        if name == "split":
            schedule = split(problem.contraction, problem.start, *arguments)
        else:
            schedule = getattr(problem.start, name)(problem.contraction, *arguments)
    except IllegalSchedule:
        return None
    return schedule if problem.refusal(schedule) is None else None


def test_the_cursor_goes_with_its_loop():
    p = forward()
    state = State(p, Schedule.parse("z:1 parallel, y:1 parallel, ci:1, ky:1, co:1, kx:1 unroll, x:1 vector"), 2)
    down = act(state, ACTIONS[3])
    assert str(down.schedule).startswith("z:1 parallel, y:1 parallel, ky:1, ci:1") and down.cursor == 3
    assert act(down, ACTIONS[2]) == state
    halves = act(state, next(a for a in ACTIONS if str(a) == "split 2"))
    assert halves.schedule.loops[2:4] == Schedule.parse("ci:2, ci:1").loops and halves.cursor == 2
    assert act(halves, next(a for a in ACTIONS if str(a) == "join")) == state


def test_lanes_split_by_whole_vectors():
    p = forward(extent=(2, 5, 40))
    state = State(p, Schedule.parse("z:1 parallel, y:1 parallel, co:1, ci:1, ky:1, kx:1 unroll, x:1 vector"), 6)
    after = act(state, next(a for a in ACTIONS if str(a) == "split lanes 2"))
    assert str(after.schedule).endswith("kx:1 unroll, x:32 unroll, x:1 vector")


def test_tasks_of_products_at_points_stay_the_callers():
    problem, _ = at_points()
    assert problem.refusal(problem.start) is None
    more = Schedule.parse(str(problem.start).replace("p:1 parallel, ", "p:1 parallel, co:4 parallel, "))
    assert "every p must be one task" in problem.refusal(more.check(problem.contraction))


def test_copies_that_nobody_adds_up_are_refused():
    problem = forward()
    summed = Schedule.parse("z:1 parallel, ci:1 parallel, y:1, co:1, ky:1, kx:1 unroll, x:1 vector")
    assert problem.refusal(summed) is not None
    c = conv_backward_weights(1, 6, 8, (1, 3, 3), (2, 5, 21))
    weights = of_contraction(c, AVX512)
    text = "z:1 parallel, y:1 parallel, co:8, ci:1, ky:1, kx:1 unroll, co:1 unroll, x:1 vector"
    assert weights.refusal(Schedule.parse(text)) is None


def test_too_much_memory_for_copies_is_refused(monkeypatch):
    weights = of_contraction(conv_backward_weights(1, 6, 8, (1, 3, 3), (2, 5, 21)), AVX512)
    monkeypatch.setattr(limits, "MAX_COPIES", 2 * 6 * 8 * 9 * F32.itemsize - 1)
    assert "copies of dw" in weights.refusal(Schedule.parse("z:1 parallel, co:1, ci:1, ky:1, kx:1, y:1, x:1"))


def test_code_that_takes_long_to_compile_is_refused():
    problem = forward(extent=(2, 5, 200), channels=(24, 48), kernel=(1, 3, 3))
    text = ("z:1 parallel, y:1 parallel, co:24, {}ci:1{u}, ky:1 unroll, kx:1 unroll, co:1 unroll, x:1 vector")
    assert problem.refusal(Schedule.parse(text.format("x:16, ", u=" unroll"))) is not None
    assert problem.refusal(problem.start) is None

"""The policy: what it proposes is possible, alike for alike, and better founded with every timing."""
import random

import numpy as np
import pytest
import torch

from tests.znn.tuner.problems import at_points, forward
from znn.tuner.agent import curves, judging, policy, train, weights
from znn.tuner.agent.examples import examples, seen
from znn.tuner.agent.network import Actor, Judges
from znn.tuner.moves import neighbours
from znn.tuner.observation import SIZE
from znn.tuner.searches import Budget, run
from znn.tuner.table import Result, Table

PROBLEMS = [forward(), *at_points()]


def loops(problem, schedule):
    """A time that grows with the number of loops, so that joining is best."""
    return Result(1e-3 * len(schedule.loops), 1 / len(schedule.loops))


def measured(problem, count):
    """A table of so many schedules of a problem."""
    table = Table()
    for schedule in [problem.start, *policy.shipped().walks(problem, problem.start, random.Random(0))][:count]:
        table.add(problem, schedule, loops(problem, schedule))
    return table


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_policy_proposes_what_is_possible_and_each_once(problem):
    found = [schedule for schedule, _ in run(policy.policy, problem, loops, Budget(15), random.Random(0))]
    assert problem.start in found and len(set(found)) == len(found) > 1
    assert not any(map(problem.refusal, found))


def test_the_same_seed_proposes_the_same():
    proposals = [list(run(policy.policy, PROBLEMS[0], loops, Budget(12), random.Random(3))) for _ in range(2)]
    assert proposals[0] == proposals[1]
    assert policy.best(PROBLEMS[0]) == policy.best(PROBLEMS[0])


def test_a_pool_has_what_is_around_and_promises_what_is_left():
    problem = PROBLEMS[0]
    pool = policy.Pool(policy.shipped(), problem)
    assert pool.promising({}) is None and pool.gain(problem.start) == 0
    pool.around(problem.start)
    times, around = {problem.start: 1.0}, neighbours(problem, problem.start)
    while (schedule := pool.promising(times)) is not None:
        assert schedule not in times
        times[schedule] = 1.0
    assert set(around) <= set(times)


def test_a_correction_tells_what_was_timed_and_nothing_far_away():
    features = np.array([[0.0, 0.0], [3.0, 3.0]])
    correction = policy.Correction(features, np.zeros(2), np.array([0.4, -0.2]))
    (near, far, bad), (known, unknown, doubtful) = correction(np.array([[0.0, 0.0], [99.0, 99.0], [99.0, 99.0]]),
                                                              np.array([0.0, 0.1, -0.5]))
    assert 0.3 < near < 0.4 and known < policy.NOISE
    assert far == pytest.approx(0) and unknown == pytest.approx(policy.TRUST)
    assert bad == pytest.approx(0) and doubtful == pytest.approx(policy.TRUST + 0.5 * policy.DOUBT)


def test_improvement_is_the_mean_of_what_is_positive():
    rng = np.random.default_rng(0)
    for mean, deviation in ((0.1, 0.2), (-0.3, 0.2), (0.5, 0.0)):
        drawn = np.maximum(mean + deviation * rng.standard_normal(200_000), 0).mean()
        assert policy.improvement(np.array(mean), np.array(deviation)) == pytest.approx(drawn, abs=2e-3)


def test_a_judge_learns_what_is_faster():
    problem = PROBLEMS[0]
    found = examples(measured(problem, 30), [problem])
    assert found.gains[0] == 0 and len(found.gains) > 10
    judge = judging.fit(found, epochs=60)
    assert judging.regret(found, judging.judged(judge, found.observations)) < 0.05


def test_checking_judges_asks_for_enough_problems():
    with pytest.raises(SystemExit, match=r"at least 5 problems.* found 1: measure more"):
        train.check(examples(measured(PROBLEMS[0], 3), [PROBLEMS[0]]))


def test_judged_times_are_those_of_the_table_where_it_has_them():
    problem = PROBLEMS[0]
    table, judge = measured(problem, 3), policy.shipped().judges
    measure = judging.Judged(judge, table)
    other = policy.shipped().walks(problem, problem.start, random.Random(9))
    assert measure(problem, problem.start) == table.get(problem, problem.start)
    unknown = next(schedule for schedule in other if table.get(problem, schedule) is None)
    assert 0 < measure(problem, unknown).share < np.inf


def test_networks_read_from_a_file_are_those_written(tmp_path):
    judges, actor = Judges(2).eval(), Actor().eval()
    weights.save(tmp_path / "p.safetensors", judges, actor)
    again = weights.load(tmp_path / "p.safetensors")
    observation = torch.from_numpy(seen(PROBLEMS[0], PROBLEMS[0].start))[None]
    assert torch.equal(again[0](observation), judges(observation))
    assert torch.equal(again[1](observation)[0], actor(observation)[0])
    assert [p.name for p in tmp_path.iterdir()] == ["p.safetensors"]


def test_a_file_of_something_else_is_refused_with_the_mend(tmp_path):
    (tmp_path / "p.safetensors").write_bytes(b"nothing")
    with pytest.raises(weights.UnusableWeights, match=f"p.safetensors: expected .* {SIZE} numbers .*train"):
        weights.load(tmp_path / "p.safetensors")


def test_walks_are_rewarded_for_the_best_on_their_way():
    pytest.importorskip("gymnasium")
    pytest.importorskip("sb3_contrib")
    from znn.tuner.agent.learning import REWARD, Found
    from znn.tuner.environment import TuningEnv

    problem, shares = PROBLEMS[0], iter([0.5, 0.4, 0.6, 0.55, 0.7])
    env = Found(TuningEnv([problem], lambda *_: Result(1e-3, next(shares))))
    env.reset(seed=0)
    rewards = [env.step(int(np.flatnonzero(env.action_masks())[0]))[1] for _ in range(4)]
    assert np.array(rewards) / REWARD == pytest.approx([0, 0.1, 0, 0.1])


def test_learning_curves_are_read_and_drawn(tmp_path):
    curve = tmp_path / "c.csv"
    curve.write_text("steps,gain\n1000,-0.5\n2000,0.25\n")
    assert curves.read(curve) == ([1000, 2000], [-0.5, 0.25])
    curves.main([str(tmp_path / "c.png"), f"ppo={curve}"])
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    curve.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"c\.csv: expected columns steps and gain"):
        curves.read(curve)


def test_training_writes_a_policy(tmp_path, monkeypatch):
    pytest.importorskip("sb3_contrib")
    from znn.tuner.agent import learning
    from znn.tuner.environment import TuningEnv

    monkeypatch.setitem(learning.PPO, "n_steps", 16)
    problem = PROBLEMS[0]
    measure = judging.Judged(policy.shipped().judges, measured(problem, 3))
    for algorithm in (learning.ppo, learning.dqn):
        actor = algorithm([lambda: TuningEnv([problem], measure, 4)], 32)
        assert torch.isfinite(actor(torch.from_numpy(seen(problem, problem.start))[None])[0]).all()


def test_measuring_covers_the_start_s_neighbours_what_evolves_and_what_is_proposed(monkeypatch, tmp_path):
    monkeypatch.setattr(train.Measurer, "measure", lambda self, problem, schedule: self.table.get(problem, schedule)
                        or self.table.add(problem, schedule, loops(problem, schedule))
                        or self.table.get(problem, schedule))
    for name, count in {"AROUND": 6, "SCHEDULES": 4, "PROPOSED": 3}.items():
        monkeypatch.setattr(train, name, count)
    problem, table = PROBLEMS[0], Table(tmp_path / "t.jsonl")
    train.measure(table, [problem], 60, random.Random(0))
    near = set(map(str, neighbours(problem, problem.start)))
    assert 6 <= len(table.of(problem)) <= 13 and len(near & set(table.of(problem))) >= 5
    assert Table(tmp_path / "t.jsonl").of(problem) == table.of(problem)


def test_measuring_ends_with_its_time():
    table = Table()
    train.measure(table, PROBLEMS, 0, random.Random(0))
    assert not len(table)

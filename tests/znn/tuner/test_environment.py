import hashlib
import warnings

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not there: it comes with the extra 'tune'")

from gymnasium.utils.env_checker import check_env  # noqa: E402

from tests.znn.tuner.problems import at_points, forward  # noqa: E402
from znn.tuner.environment import TuningEnv  # noqa: E402
from znn.tuner.moves import ACTIONS, neighbours  # noqa: E402
from znn.tuner.observation import observe  # noqa: E402
from znn.tuner.table import Result, Table, Unmeasured  # noqa: E402

NUMBER = {str(action): i for i, action in enumerate(ACTIONS)}


def share(problem, schedule):
    """A result without a clock."""
    digest = hashlib.sha256(str(schedule).encode()).digest()
    return Result(1e-3 * (1 + digest[0]), digest[1] / 256, 0.01) if digest[2] % 9 else Result(failure="unlucky")


def environment(**options):
    return TuningEnv([forward(), *at_points()], share, **options)


def episode(env, seed):
    """Everything that comes back from legal actions by chance."""
    rng, seen = np.random.default_rng(seed), [env.reset(seed=seed)]
    done = False
    while not done:
        seen.append(env.step(rng.choice(np.flatnonzero(env.action_masks()))))
        done = seen[-1][2] or seen[-1][3]
    return seen


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(x[0], y[0]) and x[1:] == y[1:] for x, y in zip(a, b))


def test_gymnasium_is_content():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(environment(render_mode="ansi"), skip_render_check=True)  # text has no frames a second


def test_episodes_are_the_same_given_the_seed_and_the_table(tmp_path):
    file = tmp_path / "table.jsonl"
    table = Table(file)

    def noted(problem, schedule):
        result = share(problem, schedule)
        table.add(problem, schedule, result)
        return result

    first = episode(TuningEnv([forward(), *at_points()], noted), 3)
    assert same(first, episode(environment(), 3)) and not same(first, episode(environment(), 4))
    replayed = TuningEnv([forward(), *at_points()], Table(file).measure)
    assert same(first, episode(replayed, 3))
    with pytest.raises(Unmeasured):
        episode(replayed, 4)


def test_rewards_add_up_to_the_gain_in_share():
    env = environment()
    seen = episode(env, 7)
    assert sum(reward for _, reward, *_ in seen[1:]) == pytest.approx(seen[-1][4]["share"] - seen[0][1]["share"])
    assert any(reward != 0 for _, reward, *_ in seen[1:])


def test_the_cursor_costs_nothing_and_gains_nothing():
    env = environment()
    env.reset(options={"problem": 0})
    before = env.state
    seen, reward, *_ = env.step(NUMBER["down"])
    assert reward == 0 and env.state.schedule == before.schedule and env.state.cursor == 1
    assert np.array_equal(seen, observe(env.state))


def test_an_illegal_action_changes_nothing():
    env = environment()
    seen, info = env.reset(options={"problem": 0})
    assert not env.action_masks()[NUMBER["up"]]
    again, reward, terminated, truncated, after = env.step(NUMBER["up"])
    assert np.array_equal(seen, again) and (reward, terminated, truncated) == (0, False, False) and info == after


def test_an_episode_is_truncated_after_its_steps():
    env = environment(steps=3)
    env.reset(options={"problem": 1})
    assert [env.step(NUMBER["down"])[3] for _ in range(3)] == [False, False, True]


def test_a_problem_may_be_given_and_where_to_start():
    other = forward(extent=(1, 3, 17))
    env = environment(start=lambda p: neighbours(p, p.start)[0], render_mode="ansi")
    _, info = env.reset(options={"problem": other})
    assert info["schedule"] == str(neighbours(other, other.start)[0])
    assert env.render().startswith(f"[{env.state.schedule.loops[0]}], ")

import numpy as np
import pytest

from fedhql.environments.batch import EnvironmentBatch
from fedhql.environments.make import make_environment


def test_rows_follow_gymnasium_and_leave_when_their_episode_ends() -> None:
    seeds = [3, 4, 5]
    batch = EnvironmentBatch("CartPole-v1", 3)
    singles = [make_environment("CartPole-v1") for _ in seeds]
    states = batch.reset(seeds)
    np.testing.assert_array_equal(
        states, [env.reset(seed=seed)[0] for env, seed in zip(singles, seeds, strict=True)]
    )
    running = [0, 1, 2]
    while running:
        actions = np.array([row % 2 for row in running])  # rows 0 and 2 fall left, 1 falls right
        next_states, rewards, terminated, ended = batch.step(actions)
        expected = [singles[row].step(int(a)) for row, a in zip(running, actions, strict=True)]
        np.testing.assert_array_equal(next_states, [step[0] for step in expected])
        np.testing.assert_array_equal(rewards, [step[1] for step in expected])
        np.testing.assert_array_equal(terminated, [step[2] for step in expected])
        running = [row for row, gone in zip(running, ended, strict=True) if not gone]
        assert batch.running.tolist() == running
    assert next_states.dtype == np.float32


def test_truncated_ends_without_terminating() -> None:
    batch = EnvironmentBatch("MountainCar-v0", 2)
    batch.reset([0, 1])
    for _ in range(200):
        _, _, terminated, ended = batch.step(np.array([1, 1]))
    assert ended.all()
    assert not terminated.any()
    assert len(batch.running) == 0


def test_fewer_seeds_than_environments_but_never_more() -> None:
    batch = EnvironmentBatch("FrozenLake-v1", 5)
    with pytest.raises(ValueError, match="longer"):
        batch.reset(range(6))
    assert batch.reset([1, 2]).shape == (2,)
    assert batch.step(np.array([0, 1]))[0].shape == (2,)

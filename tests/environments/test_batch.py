import json
from typing import Any

import numpy as np
import pytest

from fedhql.environments.batch import EnvironmentBatch
from fedhql.environments.make import make_environment
from fedhql.environments.twin_batch import TwinBatch
from fedhql.environments.twins import TWINS


def test_rows_step_like_gymnasium_and_leave_when_their_episode_ends() -> None:
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


def test_a_truncated_episode_ends_without_terminating() -> None:
    batch = EnvironmentBatch("MountainCar-v0", 2)
    batch.reset([0, 1])
    for _ in range(200):
        _, _, terminated, ended = batch.step(np.array([1, 1]))
    assert ended.all()
    assert not terminated.any()
    assert len(batch.running) == 0


def test_reset_takes_fewer_seeds_than_environments_but_not_more() -> None:
    batch = EnvironmentBatch("FrozenLake-v1", 5)
    with pytest.raises(ValueError, match="6 seeds for 5"):
        batch.reset(range(6))
    assert batch.reset([1, 2]).shape == (2,)
    assert batch.step(np.array([0, 1]))[0].shape == (2,)


def gymnasium() -> EnvironmentBatch:
    return EnvironmentBatch("CartPole-v1", 3)


def twins() -> TwinBatch:
    return TwinBatch(TWINS["CartPole-v1"], 3)


def play(batch: Any, steps: int) -> list[Any]:
    """Step the batch: row 0 falls left as fast as it can, the others balance for a while."""
    seen = []
    for number in range(steps):
        actions = np.array([0 if row == 0 else (number + row) % 2 for row in batch.running])
        seen.append([np.array(part).tolist() for part in batch.step(actions)])
    return seen


@pytest.mark.parametrize("make", [gymnasium, twins])
def test_go_on_restarts_only_ended_episodes(make: Any) -> None:
    batch, fresh = make(), make()
    begun = batch.go_on([1, 2, 3])
    np.testing.assert_array_equal(begun, fresh.reset([1, 2, 3]))
    last = play(batch, 12)[-1]
    assert batch.running.tolist() == [1, 2]
    states = batch.go_on([7, 8, 9])
    assert batch.running.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(states[0], fresh.reset([7, 8, 9])[0])
    np.testing.assert_array_equal(states[1:], np.array(last[0], dtype=np.float32)[-2:])


@pytest.mark.parametrize("make", [gymnasium, twins])
def test_a_batch_continues_from_a_saved_position(make: Any) -> None:
    batch, restored = make(), make()
    restored.go_to(json.loads(json.dumps(batch.position())))  # before anything has begun
    assert len(restored.running) == 0
    batch.go_on([1, 2, 3])
    play(batch, 12)
    restored.reset([4, 5, 6])
    restored.go_to(json.loads(json.dumps(batch.position())))
    for one in (batch, restored):
        one.go_on([7, 8, 9])
    assert play(restored, 5) == play(batch, 5)

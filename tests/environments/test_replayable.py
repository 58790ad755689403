import json
from typing import Any

import numpy as np
import pytest

from fedhql.environments.make import make_environment
from fedhql.environments.replayable import ReplayableEnvironment


def steps(env: ReplayableEnvironment, count: int, rng: np.random.Generator) -> list[Any]:
    """Return what a random policy sees, episode after episode."""
    seen: list[Any] = []
    for _ in range(count):
        observation, reward, terminated, truncated, _ = env.step(int(rng.integers(2)))
        seen.append((np.asarray(observation).tolist(), float(reward), terminated, truncated))
        if terminated or truncated:
            seen.append(np.asarray(env.reset()[0]).tolist())
    return seen


@pytest.mark.parametrize(
    "env_id", ["CartPole-v1", "LunarLander-v3", "FrozenLake-v1", "CliffWalking-v1"]
)
def test_a_restored_environment_continues_exactly(env_id: str) -> None:
    """Box2D's worlds cannot be pickled, but a position must restore them bit for bit."""
    original = ReplayableEnvironment(make_environment(env_id), seed=5)
    original.reset()
    steps(original, 137, np.random.default_rng(0))
    position = json.loads(json.dumps(original.position()))

    restored = ReplayableEnvironment(make_environment(env_id), seed=99)
    restored.go_to(position)
    ahead = steps(original, 300, np.random.default_rng(1))
    assert steps(restored, 300, np.random.default_rng(1)) == ahead


def test_a_position_can_be_taken_before_the_first_episode() -> None:
    original = ReplayableEnvironment(make_environment("CartPole-v1"), seed=5)
    restored = ReplayableEnvironment(make_environment("CartPole-v1"), seed=99)
    restored.go_to(original.position())
    np.testing.assert_array_equal(restored.reset()[0], original.reset()[0])


def test_successive_episodes_have_different_starts() -> None:
    env = ReplayableEnvironment(make_environment("CartPole-v1"), seed=5)
    assert env.reset()[0].tolist() != env.reset()[0].tolist()

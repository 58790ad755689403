from typing import Any

import numpy as np
import pytest

from fedhql.engines.evaluation import evaluate
from fedhql.environments.batch import EnvironmentBatch
from fedhql.environments.make import make_environment
from fedhql.federation import InProcessCohort


class Balancer:
    """Pushes the cart to the side the pole leans to with `sign` 1, else to the other side."""

    def __init__(self, sign: float) -> None:
        self.sign = sign

    def self_learn(self, env_steps: int) -> None: ...

    def q_values(self, states: Any) -> Any:
        lean = self.sign * (states[:, 2] + states[:, 3])
        return np.stack([-lean, lean], axis=1)

    def improve(self, states: Any, actions: Any, targets: Any) -> None: ...


def alone(agent: Balancer, seed: int) -> tuple[float, int]:
    env = make_environment("CartPole-v1")
    state, _ = env.reset(seed=int(seed))
    total, length, ended = 0.0, 0, False
    while not ended:
        action = int(agent.q_values(state[None])[0].argmax())
        state, reward, terminated, truncated, _ = env.step(action)
        total, length, ended = total + float(reward), length + 1, terminated or truncated
    return total, length


def test_episodes_side_by_side_equal_single_episodes() -> None:
    agents = [Balancer(-1), Balancer(1), Balancer(-1)]
    seeds_NE = np.arange(12, dtype=np.uint32).reshape(3, 4)
    returns_NE, lengths_NE = evaluate(
        InProcessCohort(agents, 2).query_each, EnvironmentBatch("CartPole-v1", 12), seeds_NE, 10_000
    )
    for n, agent in enumerate(agents):
        expected = [alone(agent, seed) for seed in seeds_NE[n]]
        np.testing.assert_array_equal(returns_NE[n], [total for total, _ in expected])
        np.testing.assert_array_equal(lengths_NE[n], [length for _, length in expected])
    assert returns_NE[1].mean() > 10 * returns_NE[0].mean()


def test_an_agent_that_answers_nan_still_acts() -> None:
    returns_NE, _ = evaluate(
        InProcessCohort([Balancer(np.nan)], 2).query_each,
        EnvironmentBatch("CartPole-v1", 2),
        np.zeros((1, 2), dtype=np.uint32),
        10_000,
    )
    assert (returns_NE > 0).all()


@pytest.mark.parametrize("limit", [1, 37])
def test_an_episode_ends_at_the_step_limit(limit: int) -> None:
    returns_NE, lengths_NE = evaluate(
        InProcessCohort([Balancer(1)], 2).query_each,
        EnvironmentBatch("CartPole-v1", 2),
        np.zeros((1, 2), dtype=np.uint32),
        limit,
    )
    assert (returns_NE == limit).all()
    assert (lengths_NE == limit).all()

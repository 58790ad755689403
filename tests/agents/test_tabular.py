from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhql import BlackBoxAgent, Checkpointable
from fedhql.agents.kind_settings import TabularSettings
from fedhql.agents.tabular import TabularAgent
from fedhql.environments.make import make_environment
from fedhql.errors import AgentRefused
from tests.known_mdps import optimal_q, random_mdp

ALL_STATES = np.arange(16)


def agent(seed: int = 0, **settings: Any) -> TabularAgent:
    return TabularAgent(
        TabularSettings(**settings), make_environment("FrozenLake-v1"), discount=0.9, seed=seed
    )


def test_the_agent_satisfies_the_black_box_contract() -> None:
    assert isinstance(agent(), BlackBoxAgent)
    assert isinstance(agent(), Checkpointable)


@pytest.mark.parametrize("exploration", ["epsilon-greedy", "boltzmann", "ucb"])
def test_it_converges_to_the_optimal_values(exploration: Any) -> None:
    """With all pairs visited and a rate of k^-0.7, Q approaches Q* (0.68 to 1.9; Watkins)."""
    learner = TabularAgent(
        TabularSettings(
            exploration=exploration,
            epsilon=1.0,
            confidence=10.0,
            learning_rate=1.0,
            learning_rate_decay=0.7,
        ),
        make_environment("tests.known_mdps:RandomMDP-v0"),
        discount=0.5,
        seed=0,
    )
    learner.self_learn(40_000)
    best = optimal_q(*random_mdp(0), discount=0.5)
    assert np.abs(learner.q_values(np.arange(len(best))) - best).max() < 0.1


def test_an_improvement_equals_hand_computed_values() -> None:
    learner = agent(initial_value=1.0, improvement_learning_rate=0.5, improvement_steps=2)
    learner.improve(np.array([3, 3, 4]), np.array([1, 1, 0]), np.array([5.0, 9.0, 1.0]))
    q = learner.q_values(ALL_STATES)
    assert q[3, 1] == pytest.approx(0.25 * 1 + 0.75 * 7)  # towards the mean of 5 and 9
    q[3, 1] = 1.0
    np.testing.assert_array_equal(q, 1.0)


def test_a_restored_agent_continues_bit_for_bit(tmp_path: Path) -> None:
    original, restored = (agent(seed, exploration="boltzmann") for seed in (1, 2))
    original.self_learn(501)
    original.save(tmp_path)
    restored.restore(tmp_path)
    original.self_learn(1000)
    restored.self_learn(400)
    restored.self_learn(600)
    np.testing.assert_array_equal(restored.q_values(ALL_STATES), original.q_values(ALL_STATES))


def test_a_space_that_is_not_discrete_is_refused() -> None:
    with pytest.raises(AgentRefused, match="Discrete observation space"):
        TabularAgent(TabularSettings(), make_environment("CartPole-v1"), discount=0.9, seed=0)

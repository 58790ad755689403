"""What is special in sb3-contrib's QR-DQN as a black box."""

from typing import Any

import numpy as np
import pytest
import torch
from sb3_contrib import QRDQN
from stable_baselines3.common.monitor import Monitor

from fedhql.environments.make import make_environment
from fedhql.environments.replayable import ReplayableEnvironment
from tests.agents.sb3.quick import IMPROVED_ACTIONS, STATES, quick_agent


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def quantiles(learner: Any) -> Any:
    """Return the quantiles at the states: (B, T, A)."""
    with torch.no_grad():
        return learner._model.quantile_net(torch.as_tensor(STATES)).numpy()


def test_it_answers_the_mean_of_its_quantiles() -> None:
    learner = quick_agent("sb3-qrdqn", n_quantiles=7)
    learner.self_learn(200)
    found = quantiles(learner)
    assert found.shape == (64, 7, 2)
    assert found.std(axis=1).min() > 0
    np.testing.assert_allclose(learner.q_values(STATES), found.mean(axis=1), rtol=1e-6)


def test_improvement_moves_every_quantile_towards_the_target() -> None:
    learner = quick_agent("sb3-qrdqn", improvement_steps=500, improvement_learning_rate=1e-2)
    targets = np.where(IMPROVED_ACTIONS == 0, 2.0, -1.0).astype(np.float32)
    learner.improve(STATES, IMPROVED_ACTIONS, targets)
    chosen_BT = quantiles(learner)[np.arange(64), :, IMPROVED_ACTIONS]
    assert np.abs(chosen_BT - targets[:, None]).mean(axis=0).max() < 0.1


def test_it_learns_as_sb3_contrib_itself_does() -> None:
    """With the same seeds, the network equals that of one call of QRDQN.learn."""
    ours = quick_agent("sb3-qrdqn", seed=7, exploration_final_eps=0.1, learning_rate=1e-3)
    ours.self_learn(400)
    theirs = QRDQN(
        "MlpPolicy",
        ReplayableEnvironment(Monitor(make_environment("CartPole-v1")), 7),
        learning_rate=1e-3,
        buffer_size=5_000,
        learning_starts=50,
        target_update_interval=100,
        exploration_initial_eps=0.1,
        exploration_final_eps=0.1,
        max_grad_norm=10,
        policy_kwargs={
            "net_arch": [16],
            "n_quantiles": 5,
            "optimizer_class": torch.optim.Adam,
            "optimizer_kwargs": {},
        },
        seed=7,
        device="cpu",
    )
    theirs.learn(400)
    with torch.no_grad():
        expected = theirs.quantile_net(torch.as_tensor(STATES)).numpy()
    np.testing.assert_array_equal(quantiles(ours), expected)

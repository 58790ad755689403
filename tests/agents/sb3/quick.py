"""Small agents of every kind of stable-baselines3, for the tests."""

from functools import partial
from typing import Any

import numpy as np

from fedhql.agents.kinds import build_agent
from fedhql.agents.task import AgentTask
from fedhql.environments.make import make_environment

STATES = np.random.default_rng(0).uniform(-1, 1, (64, 4)).astype(np.float32)
IMPROVED_ACTIONS, TARGETS = np.arange(64) % 2, np.linspace(0, 1, 64, dtype=np.float32)

_REPLAY = {"hidden": (16,), "learning_starts": 50, "buffer_size": 5_000}
_REPLAY |= {"target_update_interval": 100}
_ROLLOUT = {"hidden": (16,), "q_hidden": (16,), "q_batch_size": 16}
QUICK: dict[str, dict[str, Any]] = {
    "sb3-dqn": _REPLAY,
    "sb3-qrdqn": _REPLAY | {"n_quantiles": 5},
    "sb3-ppo": _ROLLOUT | {"n_steps": 64, "batch_size": 16, "n_epochs": 4},
    "sb3-a2c": _ROLLOUT,
}


def quick_agent(kind: str, seed: int = 0, env_id: str = "CartPole-v1", **settings: Any) -> Any:
    return build_agent(kind, QUICK[kind] | settings, quick_task(seed, env_id))


def quick_task(seed: int = 0, env_id: str = "CartPole-v1") -> AgentTask:
    return AgentTask(
        env_id,
        partial(make_environment, env_id),
        lambda: None,
        discount=0.99,
        budget_env_steps=10_000,
        phase_env_steps=200,
        seed=seed,
    )

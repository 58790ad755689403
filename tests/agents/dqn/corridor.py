"""A simple corridor for tests, as a twin and as a Gymnasium environment."""

from typing import Any

import gymnasium as gym
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from fedhql.environments.twins import Array, Numbers, Twin

LIMIT, GOAL, FORWARD, BACK = 9, 1.0, 0.2, -0.1


def _step(state: Numbers, action: Array) -> tuple[Numbers, Array, Array]:
    x = state[0] + jnp.where(action == 1, jnp.float32(FORWARD), BACK)
    return (x,), jnp.where(x >= GOAL, 1.0, -x), x >= GOAL


def _observe(state: Numbers) -> Numbers:
    return state[0], 1 - state[0]


# Episodes start in the first half. The best policy reaches the goal within 5 steps.
CORRIDOR = Twin(2, 2, LIMIT, 1, lambda draws: (draws[0] / 2,), _step, _observe)


class Corridor(gym.Env[Any, Any]):
    """The corridor as a Gymnasium environment, without the time limit."""

    observation_space = spaces.Box(-5, 5, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._x = self.np_random.random() / 2
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._x += FORWARD if action == 1 else BACK
        there = self._x >= GOAL
        return self._seen(), 1.0 if there else -self._x, there, False, {}

    def _seen(self) -> Any:
        return np.array([self._x, 1 - self._x], dtype=np.float32)


def corridor() -> gym.Env[Any, Any]:
    return gym.wrappers.TimeLimit(Corridor(), LIMIT)

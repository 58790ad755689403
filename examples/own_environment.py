"""An environment of your own for both engines: fedhql run own_environment.toml --out runs/cart"""

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from fedhql.environments.twins import Twin


def start(draws: Any) -> Any:  # two uniform numbers in [0, 1) -> state
    return draws[0] - 0.5, draws[1] - 0.5


def step(state: Any, action: Any) -> tuple[Any, Any, Any]:  # -> state, reward, terminated
    x, speed = state
    speed = speed + 0.1 * (action - 1)
    x = x + 0.1 * speed
    return (x, speed), 1 - abs(x), abs(x) > 1


class Cart(gym.Env[Any, Any]):
    """Balance a cart at 0, as Gymnasium has it."""

    observation_space, action_space = gym.spaces.Box(-9, 9, (2,)), gym.spaces.Discrete(3)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=options.get("seed"))
        self.state = start(self.np_random.random(2, dtype=np.float32))
        return np.array(self.state), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.state, reward, fell = step(self.state, int(action))
        return np.array(self.state, "f4"), float(reward), bool(fell), False, {}


gym.register("Cart-v0", entry_point="own_environment:Cart", max_episode_steps=200)
twin = partial(Twin, 2, 3, 200, 2, start, step, observe=lambda state: state)  # for compiled runs

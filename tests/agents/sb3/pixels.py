"""A small environment whose observations are images."""

from typing import Any

import gymnasium as gym
import numpy as np

SHAPE = (40, 40, 3)


class Pixels(gym.Env[Any, Any]):
    """Shows noise; episodes have 20 steps."""

    observation_space = gym.spaces.Box(0, 255, SHAPE, np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._picture(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._picture(), float(action), False, False, {}

    def _picture(self) -> Any:
        return self.np_random.integers(256, size=SHAPE).astype(np.uint8)


gym.register("Pixels-v0", entry_point=f"{__name__}:Pixels", max_episode_steps=20)

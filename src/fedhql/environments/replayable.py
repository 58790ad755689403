"""Environments whose exact position can be written down, whatever they are made of.

Many environments cannot be pickled (Box2D's worlds live in C++). Gymnasium asks instead that an
episode be a function of its seed and its actions, so those two are a position: restoring it is
resetting with the seed and taking the actions again. (So a position grows with its episode, and an
environment whose episodes never end has a position as long as its past.)
"""

from typing import Any

import gymnasium as gym
import numpy as np

from fedhql.environments.make import Environment


class ReplayableEnvironment(gym.Wrapper[Any, Any, Any, Any]):
    """Draws every episode's seed from a stream of its own and remembers the actions taken."""

    def __init__(self, env: Environment, seed: int) -> None:
        super().__init__(env)
        self._seeds = np.random.default_rng(seed)
        self._episode_seed: int | None = None  # None: no episode has begun
        self._actions: list[int] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._seeds = np.random.default_rng(seed)
        self._episode_seed = int(self._seeds.integers(2**31))
        self._actions = []
        return self.env.reset(seed=self._episode_seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._actions.append(int(action))
        return self.env.step(action)

    def position(self) -> dict[str, Any]:
        """Where it stands, as JSON."""
        return {
            "seeds": self._seeds.bit_generator.state,
            "episode_seed": self._episode_seed,
            "actions": list(self._actions),
        }

    def go_to(self, position: dict[str, Any]) -> None:
        """Stand exactly where `position` was taken."""
        self._seeds.bit_generator.state = position["seeds"]
        self._episode_seed = position["episode_seed"]
        self._actions = list(position["actions"])
        if self._episode_seed is None:
            return
        self.env.reset(seed=self._episode_seed)
        for action in self._actions:
            self.env.step(action)

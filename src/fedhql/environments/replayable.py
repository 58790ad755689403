"""Environments whose exact position can be saved, however they are implemented.

Many environments cannot be pickled (Box2D's worlds live in C++). Gymnasium requires instead that an
episode is a function of its seed and its actions. So a position is the seed and the actions. To
restore it, we reset with the seed and repeat the actions. A position grows with its episode, and
without limit if the episode never ends.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from fedhql.environments.make import Environment


class Episode:
    """One episode of an environment: its seed and the actions taken since."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.state: Any = None  # the last observation
        self._seed: int | None = None  # None: no episode has begun
        self._actions: list[int] = []

    def begin(self, seed: int, options: dict[str, Any] | None = None) -> dict[str, Any]:
        self._seed, self._actions = seed, []
        self.state, info = self.env.reset(seed=seed, options=options)
        return info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._actions.append(int(action))
        taken = self.env.step(action)
        self.state = taken[0]
        return taken

    def position(self) -> dict[str, Any]:
        """Return the position as JSON values."""
        return {"seed": self._seed, "actions": list(self._actions)}

    def go_to(self, position: Mapping[str, Any]) -> None:
        if position["seed"] is None:
            self._seed, self._actions = None, []
            return
        self.begin(position["seed"])
        for action in position["actions"]:
            self.step(action)


class ReplayableEnvironment(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that draws the seed of every episode from its own random stream."""

    def __init__(self, env: Environment, seed: int) -> None:
        super().__init__(env)
        self._seeds = np.random.default_rng(seed)
        self._episode = Episode(env)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._seeds = np.random.default_rng(seed)
        info = self._episode.begin(int(self._seeds.integers(2**31)), options)
        return self._episode.state, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return self._episode.step(action)

    def position(self) -> dict[str, Any]:
        """Return the position as JSON values."""
        return {"seeds": self._seeds.bit_generator.state, "episode": self._episode.position()}

    def go_to(self, position: Mapping[str, Any]) -> None:
        """Return to the exact point where `position` was taken."""
        self._seeds.bit_generator.state = position["seeds"]
        self._episode.go_to(position["episode"])

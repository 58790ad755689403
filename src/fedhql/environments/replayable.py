"""Environments whose exact position can be written down, whatever they are made of.

Many environments cannot be pickled (Box2D's worlds live in C++). Gymnasium asks instead that an
episode be a function of its seed and its actions, so those two are a position: restoring it is
resetting with the seed and taking the actions again. (So a position grows with its episode, and an
environment whose episodes never end has a position as long as its past.)
"""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from fedhql.environments.make import Environment


class Episode:
    """One environment in one episode: its seed and the actions taken since."""

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
        """Where it stands, as JSON."""
        return {"seed": self._seed, "actions": list(self._actions)}

    def go_to(self, position: Mapping[str, Any]) -> None:
        if position["seed"] is None:
            self._seed, self._actions = None, []
            return
        self.begin(position["seed"])
        for action in position["actions"]:
            self.step(action)


class ReplayableEnvironment(gym.Wrapper[Any, Any, Any, Any]):
    """Draws every episode's seed from a stream of its own."""

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
        """Where it stands, as JSON."""
        return {"seeds": self._seeds.bit_generator.state, "episode": self._episode.position()}

    def go_to(self, position: Mapping[str, Any]) -> None:
        """Stand exactly where `position` was taken."""
        self._seeds.bit_generator.state = position["seeds"]
        self._episode.go_to(position["episode"])

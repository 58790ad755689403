"""A batch of environments for the server and for evaluation: an ended one steps no more."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhql.environments.make import make_environment
from fedhql.environments.replayable import Episode


class EnvironmentBatch:
    """B copies of one environment, stepped together; rows leave as their episodes end.

    Every episode starts from a seed that is passed in, so a batch holds no randomness of its own,
    and where an episode stands is its seed and the actions since.
    """

    def __init__(self, env_id: str, size: int, options: Mapping[str, Any] | None = None) -> None:
        self._episodes = [Episode(make_environment(env_id, options)) for _ in range(size)]
        self._dtype = self._episodes[0].env.observation_space.dtype
        self.running: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def reset(self, seeds: Sequence[int]) -> NDArray[Any]:
        """Start an episode per seed (at most B) -> states (len(seeds), *obs)."""
        self.running = np.empty(0, dtype=np.int64)
        return self.go_on(seeds)

    def go_on(self, seeds: Sequence[int]) -> NDArray[Any]:
        """Start one where none is running -> the states of all."""
        if len(seeds) > len(self._episodes):
            raise ValueError(f"{len(seeds)} seeds for {len(self._episodes)} environments")
        for row in np.setdiff1d(np.arange(len(seeds)), self.running):
            self._episodes[row].begin(int(seeds[row]))
        self.running = np.arange(len(seeds))
        return self.states()

    def states(self) -> NDArray[Any]:
        """Of the running ones."""
        return np.array([self._episodes[row].state for row in self.running], dtype=self._dtype)

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]:
        """Step the running environments -> next states, rewards, terminated, ended.

        `ended` is terminated or truncated; those rows leave `running`.
        """
        steps = [
            self._episodes[row].step(int(action))
            for row, action in zip(self.running, actions, strict=True)
        ]
        next_states, rewards, terminated, truncated, _ = zip(*steps, strict=True)
        ended = np.array(terminated, dtype=np.bool_) | np.array(truncated, dtype=np.bool_)
        self.running = self.running[~ended]
        return (
            np.array(next_states, dtype=self._dtype),
            np.array(rewards, dtype=np.float32),
            np.array(terminated, dtype=np.bool_),
            ended,
        )

    def position(self) -> dict[str, Any]:
        """Where it stands, as JSON."""
        return {
            "running": self.running.tolist(),
            "episodes": [self._episodes[row].position() for row in self.running],
        }

    def go_to(self, position: Mapping[str, Any]) -> None:
        self.running = np.array(position["running"], dtype=np.int64)
        for row, episode in zip(self.running, position["episodes"], strict=True):
            self._episodes[row].go_to(episode)

    def close(self) -> None:
        for episode in self._episodes:
            episode.env.close()

"""A batch of Gymnasium environments, for the server and for evaluation."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhql.environments.make import make_environment
from fedhql.environments.replayable import Episode


class EnvironmentBatch:
    """B copies of one environment that are stepped together. A row leaves when its episode ends.

    Every episode starts from a seed that is passed in, so a batch has no randomness of its own. The
    position of an episode is its seed and the actions since.
    """

    def __init__(self, env_id: str, size: int, options: Mapping[str, Any] | None = None) -> None:
        self._episodes = [Episode(make_environment(env_id, options)) for _ in range(size)]
        self._dtype = self._episodes[0].env.observation_space.dtype
        self.running: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def reset(self, seeds: Sequence[int]) -> NDArray[Any]:
        """Start an episode per seed (at most B); return the states (len(seeds), *obs)."""
        self.running = np.empty(0, dtype=np.int64)
        return self.go_on(seeds)

    def go_on(self, seeds: Sequence[int]) -> NDArray[Any]:
        """Start an episode in each row where none is running; return the states of all rows."""
        if len(seeds) > len(self._episodes):
            raise ValueError(
                f"{len(seeds)} seeds for {len(self._episodes)} environments; allowed: one each"
            )
        for row in np.setdiff1d(np.arange(len(seeds)), self.running):
            self._episodes[row].begin(int(seeds[row]))
        self.running = np.arange(len(seeds))
        return self.states()

    def states(self) -> NDArray[Any]:
        """Return the states of the running episodes."""
        return np.array([self._episodes[row].state for row in self.running], dtype=self._dtype)

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]:
        """Step the running environments; return next states, rewards, terminated and ended.

        `ended` means terminated or truncated; those rows leave `running`.
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
        """Return the positions of the running episodes as JSON values."""
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

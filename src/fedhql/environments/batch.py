"""A batch of environments for the server and for evaluation: an ended one steps no more."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhql.environments.make import make_environment


class EnvironmentBatch:
    """B copies of one environment, stepped together; rows leave as their episodes end.

    Every episode starts from a seed that is passed in, so a batch holds no randomness of its
    own and nothing of it needs saving between rounds.
    """

    def __init__(self, env_id: str, size: int, options: Mapping[str, Any] | None = None) -> None:
        self._environments = [make_environment(env_id, options) for _ in range(size)]
        self._dtype = self._environments[0].observation_space.dtype
        self.running: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def reset(self, seeds: Sequence[int]) -> NDArray[Any]:
        """Start an episode per seed (at most B) -> states (len(seeds), *obs)."""
        self.running = np.arange(len(seeds))
        starts = zip(self._environments[: len(seeds)], seeds, strict=True)
        return np.array([env.reset(seed=int(seed))[0] for env, seed in starts], dtype=self._dtype)

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]:
        """Step the running environments -> next states, rewards, terminated, ended.

        `ended` is terminated or truncated; those rows leave `running`.
        """
        steps = [
            self._environments[row].step(int(action))
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

    def close(self) -> None:
        for env in self._environments:
            env.close()

"""A batch of twins for whoever is not compiled: the same calls as `EnvironmentBatch`."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedhql.environments.lanes import Episodes, Step, TwinLanes
from fedhql.environments.twins import Twin


class TwinBatch:
    """B lanes of a twin, of which those whose episode has ended are no longer shown."""

    def __init__(self, twin: Twin, size: int) -> None:
        self._lanes = TwinLanes(twin)
        self._size = size
        self._episodes: Episodes = None
        self.running: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def reset(self, seeds: Any) -> NDArray[Any]:
        """Start an episode per seed (at most B) -> states (len(seeds), D)."""
        self.running = np.arange(len(seeds))
        seeds_B = np.zeros(self._size, dtype=np.uint32)
        seeds_B[: len(seeds)] = seeds
        self._episodes, states = _begin(self._lanes, jnp.asarray(seeds_B))
        return np.array(states)[: len(seeds)]

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]:
        """Step the running environments -> next states, rewards, terminated, ended."""
        actions_B = np.zeros(self._size, dtype=np.int32)
        actions_B[self.running] = actions
        step = _step(self._lanes, self._episodes, jnp.asarray(actions_B))
        self._episodes = step.episodes
        shown = self.running
        ended = np.asarray(step.ended)[shown]
        self.running = shown[~ended]
        return (
            np.asarray(step.observations)[shown],
            np.asarray(step.rewards)[shown],
            np.asarray(step.terminated)[shown],
            ended,
        )

    def close(self) -> None:
        pass


@partial(jax.jit, static_argnums=0)
def _begin(lanes: TwinLanes, seeds_B: jax.Array) -> tuple[Episodes, jax.Array]:
    episodes = lanes.begin(seeds_B)
    return episodes, lanes.observe(episodes)


@partial(jax.jit, static_argnums=0)
def _step(lanes: TwinLanes, episodes: Episodes, actions_B: jax.Array) -> Step:
    return lanes.step(episodes, actions_B, jnp.ones_like(actions_B, dtype=bool))

"""A batch of twins for code that is not compiled, with the interface of `EnvironmentBatch`."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedhql.environments.lanes import Episodes, Step, TwinEpisodes, TwinLanes, chosen
from fedhql.environments.twins import Twin


class TwinBatch:
    """B lanes of a twin. The results leave out lanes whose episode has ended."""

    def __init__(self, twin: Twin, size: int) -> None:
        self._lanes = TwinLanes(twin)
        self._size = size
        self._episodes: Episodes = None
        self.running: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def reset(self, seeds: Any) -> NDArray[Any]:
        """Start an episode per seed (at most B); return the states (len(seeds), D)."""
        self.running = np.empty(0, dtype=np.int64)
        return self.go_on(seeds)

    def go_on(self, seeds: Any) -> NDArray[Any]:
        """Start an episode in each row where none is running; return the states of all rows."""
        seeds_B = np.zeros(self._size, dtype=np.uint32)
        seeds_B[: len(seeds)] = seeds
        running_B = np.zeros(self._size, dtype=bool)
        running_B[self.running] = True
        fresh = _begin(self._lanes, jnp.asarray(seeds_B))
        before = fresh if self._episodes is None else self._episodes
        self._episodes = _go_on(before, fresh, jnp.asarray(running_B))
        self.running = np.arange(len(seeds))
        return self.states()

    def states(self) -> NDArray[Any]:
        """Return the states of the running episodes."""
        return np.array(_observe(self._lanes, self._episodes))[self.running]

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]:
        """Step the running environments; return next states, rewards, terminated and ended."""
        actions_B = np.zeros(self._size, dtype=np.int32)
        actions_B[self.running] = actions
        step = _step(self._lanes, self._episodes, jnp.asarray(actions_B))
        self._episodes = step.episodes
        stepped = self.running
        ended = np.asarray(step.ended)[stepped]
        self.running = stepped[~ended]
        return (
            np.asarray(step.observations)[stepped],
            np.asarray(step.rewards)[stepped],
            np.asarray(step.terminated)[stepped],
            ended,
        )

    def position(self) -> dict[str, Any]:
        """Return the position as JSON values, which keep every bit of a float32."""
        episodes = [] if self._episodes is None else self._episodes
        return {
            "running": self.running.tolist(),
            "episodes": [np.asarray(array).tolist() for array in episodes],
        }

    def go_to(self, position: Mapping[str, Any]) -> None:
        self.running = np.array(position["running"], dtype=np.int64)
        if position["episodes"]:
            states, elapsed = position["episodes"]
            self._episodes = TwinEpisodes(
                jnp.asarray(states, dtype=jnp.float32), jnp.asarray(elapsed, dtype=jnp.int32)
            )

    def close(self) -> None:
        pass


@partial(jax.jit, static_argnums=0)
def _begin(lanes: TwinLanes, seeds_B: jax.Array) -> Episodes:
    return lanes.begin(seeds_B)


@jax.jit
def _go_on(episodes: Episodes, fresh: Episodes, running_B: jax.Array) -> Episodes:
    return chosen(running_B, episodes, fresh)


@partial(jax.jit, static_argnums=0)
def _observe(lanes: TwinLanes, episodes: Episodes) -> jax.Array:
    return lanes.observe(episodes)


@partial(jax.jit, static_argnums=0)
def _step(lanes: TwinLanes, episodes: Episodes, actions_B: jax.Array) -> Step:
    return lanes.step(episodes, actions_B, jnp.ones_like(actions_B, dtype=bool))

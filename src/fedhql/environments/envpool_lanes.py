"""LunarLander as lanes, stepped by EnvPool's C++ on the host while the compiled program waits.

EnvPool's own way into XLA (`env.xla()`) is not taken. It writes the pool's address into the
compiled program, which can then never be given another pool: a run that stops and goes on must
begin the same new pools as one that does not stop, and would compile for each. And it has no
reset, so an ended episode costs a step whose action goes nowhere. A callback finds whatever pool
is current and resets what has ended; one that works on XLA's own buffers costs 3 µs a call more
than nothing, where the physics of 30 lanes takes 600.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.buffer_callback import buffer_callback
from numpy.typing import NDArray

from fedhql.environments.lanes import Step
from fedhql.errors import MissingExtra

Array = jax.Array
Floats = NDArray[np.float32]
SUPPORTED = ("LunarLander-v3",)
NOT_RUNNING, ANEW = -1, -2  # in place of an action


def has_envpool() -> bool:
    return importlib.util.find_spec("envpool") is not None


class EnvPoolLanes:
    """Lanes of an EnvPool environment; the episodes of the latest `begin` are the only ones.

    What a traced function carries as episodes is the observations. The calls are not ordered by
    JAX: each takes actions that were chosen from the observations of the one before, and that
    alone puts them in order. One array goes in and one comes out, because JAX spends longer on
    handing an array over than NumPy on packing it.
    """

    start_draws = 0  # a restart goes on with the lane's own generator
    keeps_episodes = False  # EnvPool cannot save what it simulates, and must do it all again

    def __init__(self, env_id: str) -> None:
        if env_id not in SUPPORTED:
            raise ValueError(f"{env_id!r} is not one of {SUPPORTED}")
        try:
            import envpool
        except ImportError as error:
            raise MissingExtra.named("envpool", f"{env_id} in compiled training") from error
        self._make: Callable[..., Any] = envpool.make_gymnasium
        self._env_id = env_id
        spec = envpool.make_spec(env_id)
        self.observation_size = int(spec.observation_space.shape[0])
        self.action_count = int(spec.action_space.n)
        # A pool cannot travel through a traced function, so the callbacks find it here.
        self._pool: Any = None
        self._seen_MD: Floats = np.empty((0, self.observation_size), dtype=np.float32)
        self._everyone = np.arange(0)
        self._seeds: list[int] = []
        self._calls: list[NDArray[np.int8]] = []  # (M,) each, since the pool was made

    def begin(self, seeds_M: Array) -> Array:
        like = np.empty((seeds_M.shape[0], self.observation_size), dtype=np.float32)
        episodes: Array = buffer_callback(self._begin, like, has_side_effect=True)(seeds_M)
        return episodes

    def go_on(self, episodes: Array, open_M: Array, seeds_M: Array) -> Array:
        """As a restart, a new episode goes on with the lane's own generator."""
        after: Array = buffer_callback(self._go_on, episodes, has_side_effect=True)(open_M)
        return after

    def history(self) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
        calls_TM = np.array(self._calls, dtype=np.int8).reshape(-1, len(self._seeds))
        return np.array(self._seeds, dtype=np.int32), calls_TM

    def replay(self, history: Any) -> None:
        seeds_M, calls_TM = (np.asarray(each) for each in history)
        self._make_pool(seeds_M)
        nowhere = np.empty((len(seeds_M), 2 * self.observation_size + 3), dtype=np.float32)
        for call_M in calls_TM:
            self._calls.append(call_M)
            self._begin_anew(np.flatnonzero(call_M == ANEW))
            self._advance(np.maximum(call_M, NOT_RUNNING), nowhere)

    def observe(self, episodes: Array) -> Array:
        return episodes

    def step(self, episodes: Array, actions_M: Array, running_M: Array) -> Step:
        asked_M = jnp.where(running_M, actions_M, NOT_RUNNING)
        return self._call(self._step, asked_M.astype(jnp.int32))

    def step_and_restart(
        self, episodes: Array, actions_M: Array, draws_MR: Array, active: Array | bool = True
    ) -> Step:
        asked_M = jnp.where(active, actions_M, NOT_RUNNING)
        return self._call(self._step_and_restart, asked_M.astype(jnp.int32))

    def _call(self, on_host: Callable[..., None], actions_M: Array) -> Step:
        D = self.observation_size
        like = np.empty((actions_M.shape[0], 2 * D + 3), dtype=np.float32)
        packed: Array = buffer_callback(on_host, like, has_side_effect=True)(actions_M)
        rewards, terminated, ended = packed[:, 2 * D], packed[:, 2 * D + 1], packed[:, 2 * D + 2]
        return Step(packed[:, :D], packed[:, D : 2 * D], rewards, terminated > 0, ended > 0)

    # From here on the host: NumPy only, because JAX called from inside a callback can wait for
    # the very program that waits for the callback. Each fills the array it is given.

    def _begin(self, _: Any, seen: Any, seeds_M: Any) -> None:
        self._make_pool(np.asarray(seeds_M))
        np.asarray(seen)[:] = self._seen_MD

    def _make_pool(self, seeds_M: NDArray[Any]) -> None:
        self._seeds = seeds = [int(seed) & 0x7FFFFFFF for seed in seeds_M]  # EnvPool's are int32
        self._calls = []
        self._pool = self._make(self._env_id, num_envs=len(seeds), seed=seeds, num_threads=1)
        self._seen_MD = np.empty((len(seeds), self.observation_size), dtype=np.float32)
        self._everyone = np.arange(len(seeds))
        self._begin_anew(self._everyone)

    def _go_on(self, _: Any, seen: Any, open_M: Any) -> None:
        call_M = np.where(np.asarray(open_M), NOT_RUNNING, ANEW).astype(np.int8)
        self._calls.append(call_M)
        self._begin_anew(np.flatnonzero(call_M == ANEW))
        np.asarray(seen)[:] = self._seen_MD

    def _step(self, _: Any, packed: Any, actions_M: Any) -> None:
        packed_MR = np.asarray(packed)
        self._calls.append(np.asarray(actions_M).astype(np.int8))
        self._advance(np.asarray(actions_M), packed_MR)
        packed_MR[:, : self.observation_size] = self._seen_MD

    def _step_and_restart(self, _: Any, packed: Any, actions_M: Any) -> None:
        packed_MR = np.asarray(packed)
        self._advance(np.asarray(actions_M), packed_MR)
        if (ended_M := packed_MR[:, -1]).any():
            self._begin_anew(np.flatnonzero(ended_M))
        packed_MR[:, : self.observation_size] = self._seen_MD

    def _advance(self, actions_M: Any, packed_MR: Floats) -> None:
        """Fills in what is seen of all lanes then, and of each its reward, terminated, ended."""
        D, lanes = self.observation_size, self._everyone
        packed_MR[:, 2 * D :] = 0
        if (actions_M == NOT_RUNNING).any():
            lanes = np.flatnonzero(actions_M != NOT_RUNNING)
            actions_M = actions_M[lanes]
        if len(lanes):
            observations, rewards, terminated, truncated, info = self._pool.step(actions_M, lanes)
            rows = info["env_id"]  # EnvPool answers in an order of its own
            self._seen_MD[rows] = observations
            packed_MR[rows, 2 * D] = rewards
            # A lander that crashes or comes to rest on the very last step allowed has both ended
            # and been cut off; EnvPool says the latter only, but its reward of ±100 gives it away.
            packed_MR[rows, 2 * D + 1] = terminated | (np.abs(rewards) == 100)
            packed_MR[rows, 2 * D + 2] = terminated | truncated
        packed_MR[:, D : 2 * D] = self._seen_MD

    def _begin_anew(self, lanes: NDArray[np.intp]) -> None:
        if len(lanes):
            observations, info = self._pool.reset(lanes)
            self._seen_MD[info["env_id"]] = observations

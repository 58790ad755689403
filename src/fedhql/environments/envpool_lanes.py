"""LunarLander as lanes: EnvPool's C++ steps it on the host while the compiled program waits.

We do not use EnvPool's own interface to XLA (`env.xla()`). It writes the address of the pool into
the compiled program, which then cannot use another pool. A resumed run must start new pools at the
same points as an uninterrupted run, so it would have to compile for each pool. `env.xla()` also has
no reset, so an ended episode costs a step whose action is ignored. Our callback uses the current
pool and resets the lanes whose episodes ended. It works on XLA's own buffers and adds 3 µs to a
call; the physics of 30 lanes takes 600 µs.
"""

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
NOT_RUNNING, RESTART = -1, -2  # in place of an action


class EnvPoolLanes:
    """Lanes of an EnvPool environment. Only the episodes of the latest `begin` exist.

    A traced function carries the observations as its episodes. JAX does not order the calls. Each
    call takes actions that were chosen from the observations of the previous call, and this alone
    puts them in order. A call takes one array and returns one array, because JAX needs longer to
    pass an array than NumPy needs to pack it.
    """

    start_draws = 0  # a restart uses the lane's own generator
    keeps_episodes = False  # EnvPool cannot save its state, so `replay` repeats all steps

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
        # A traced function cannot carry a pool, so the callbacks find it here.
        self._pool: Any = None
        self._observations_MD: Floats = np.empty((0, self.observation_size), dtype=np.float32)
        self._all_lanes = np.arange(0)
        self._seeds: list[int] = []
        self._calls: list[NDArray[np.int8]] = []  # actions (M,) since the pool was made

    def begin(self, seeds_M: Array) -> Array:
        like = np.empty((seeds_M.shape[0], self.observation_size), dtype=np.float32)
        return buffer_callback(self._begin, like, has_side_effect=True)(seeds_M)

    def go_on(self, episodes: Array, open_M: Array, seeds_M: Array) -> Array:
        """Ignore `seeds_M`: like a restart, a new episode uses the lane's own generator."""
        return buffer_callback(self._go_on, episodes, has_side_effect=True)(open_M)

    def history(self) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
        calls_TM = np.array(self._calls, dtype=np.int8).reshape(-1, len(self._seeds))
        return np.array(self._seeds, dtype=np.int32), calls_TM

    def replay(self, history: Any) -> None:
        seeds_M, calls_TM = (np.asarray(each) for each in history)
        self._make_pool(seeds_M)
        discarded = np.empty((len(seeds_M), 2 * self.observation_size + 3), dtype=np.float32)
        for call_M in calls_TM:
            self._calls.append(call_M)
            self._restart(np.flatnonzero(call_M == RESTART))
            self._advance(np.maximum(call_M, NOT_RUNNING), discarded)

    def observe(self, episodes: Array) -> Array:
        return episodes

    def step(self, episodes: Array, actions_M: Array, running_M: Array) -> Step:
        called_M = jnp.where(running_M, actions_M, NOT_RUNNING)
        return self._call(self._step, called_M.astype(jnp.int32))

    def step_and_restart(
        self, episodes: Array, actions_M: Array, draws_MR: Array, active: Array | bool = True
    ) -> Step:
        called_M = jnp.where(active, actions_M, NOT_RUNNING)
        return self._call(self._step_and_restart, called_M.astype(jnp.int32))

    def _call(self, on_host: Callable[..., None], actions_M: Array) -> Step:
        D = self.observation_size
        like = np.empty((actions_M.shape[0], 2 * D + 3), dtype=np.float32)
        packed: Array = buffer_callback(on_host, like, has_side_effect=True)(actions_M)
        rewards, terminated, ended = packed[:, 2 * D], packed[:, 2 * D + 1], packed[:, 2 * D + 2]
        return Step(packed[:, :D], packed[:, D : 2 * D], rewards, terminated > 0, ended > 0)

    # The methods below run on the host, and each fills the array it is given. They use NumPy only:
    # JAX called inside a callback can wait for the program that waits for the callback.

    def _begin(self, _: Any, filled: Any, seeds_M: Any) -> None:
        self._make_pool(np.asarray(seeds_M))
        np.asarray(filled)[:] = self._observations_MD

    def _make_pool(self, seeds_M: NDArray[Any]) -> None:
        # EnvPool's seeds are int32.
        self._seeds = seeds = [int(seed) & 0x7FFFFFFF for seed in seeds_M]
        self._calls = []
        self._pool = self._make(self._env_id, num_envs=len(seeds), seed=seeds, num_threads=1)
        self._observations_MD = np.empty((len(seeds), self.observation_size), dtype=np.float32)
        self._all_lanes = np.arange(len(seeds))
        self._restart(self._all_lanes)

    def _go_on(self, _: Any, filled: Any, open_M: Any) -> None:
        call_M = np.where(np.asarray(open_M), NOT_RUNNING, RESTART).astype(np.int8)
        self._calls.append(call_M)
        self._restart(np.flatnonzero(call_M == RESTART))
        np.asarray(filled)[:] = self._observations_MD

    def _step(self, _: Any, packed: Any, actions_M: Any) -> None:
        packed_MR = np.asarray(packed)
        self._calls.append(np.asarray(actions_M).astype(np.int8))
        self._advance(np.asarray(actions_M), packed_MR)
        packed_MR[:, : self.observation_size] = self._observations_MD

    def _step_and_restart(self, _: Any, packed: Any, actions_M: Any) -> None:
        packed_MR = np.asarray(packed)
        self._advance(np.asarray(actions_M), packed_MR)
        if (ended_M := packed_MR[:, -1]).any():
            self._restart(np.flatnonzero(ended_M))
        packed_MR[:, : self.observation_size] = self._observations_MD

    def _advance(self, actions_M: Any, packed_MR: Floats) -> None:
        """Step the running lanes; fill in the observation, reward and flags of all lanes."""
        D, lanes = self.observation_size, self._all_lanes
        packed_MR[:, 2 * D :] = 0
        if (actions_M == NOT_RUNNING).any():
            lanes = np.flatnonzero(actions_M != NOT_RUNNING)
            actions_M = actions_M[lanes]
        if len(lanes):
            observations, rewards, terminated, truncated, info = self._pool.step(actions_M, lanes)
            rows = info["env_id"]  # EnvPool returns the lanes in its own order
            self._observations_MD[rows] = observations
            packed_MR[rows, 2 * D] = rewards
            # A lander that crashes or comes to rest on its last allowed step is both terminated and
            # truncated. EnvPool reports only truncated, but the reward is ±100 only on termination.
            packed_MR[rows, 2 * D + 1] = terminated | (np.abs(rewards) == 100)
            packed_MR[rows, 2 * D + 2] = terminated | truncated
        packed_MR[:, D : 2 * D] = self._observations_MD

    def _restart(self, lanes: NDArray[np.intp]) -> None:
        if len(lanes):
            observations, info = self._pool.reset(lanes)
            self._observations_MD[info["env_id"]] = observations

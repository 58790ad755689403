"""Many copies of one environment inside a compiled program, side by side as lanes.

There are M lanes; an observation has D numbers. An episode begins from a seed. If it follows
another episode inside a compiled loop, it begins from uniform draws that were made beforehand.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from fedhql.environments.kernels import start_lanes, step_lanes
from fedhql.environments.twins import Numbers, Twin

Array = jax.Array
Episodes = Any  # the state of all lanes: a pytree of arrays whose first axis is M


class Step(NamedTuple):
    """The results of one step of M lanes."""

    episodes: Episodes
    observations: Array  # (M, D) next states; for an ended episode its last state
    rewards: Array  # (M,)
    terminated: Array  # (M,)
    ended: Array  # (M,) terminated or truncated


class Lanes(Protocol):
    """Environments that a traced function can step."""

    @property
    def observation_size(self) -> int: ...

    @property
    def action_count(self) -> int: ...

    @property
    def start_draws(self) -> int:
        """The number of uniform draws that a restart takes."""

    @property
    def keeps_episodes(self) -> bool:
        """True if episodes can be saved and continued later."""

    def begin(self, seeds_M: Array) -> Episodes: ...

    def go_on(self, episodes: Episodes, open_M: Array, seeds_M: Array) -> Episodes:
        """Keep the open episodes, and begin new ones in the other lanes."""

    def history(self) -> Any:
        """Return the arrays that `replay` needs, if episodes live outside of the program."""

    def replay(self, history: Any) -> None:
        """Restore the episodes outside of the program to where `history` was taken."""

    def observe(self, episodes: Episodes) -> Array:
        """Return the states (M, D)."""

    def step(self, episodes: Episodes, actions_M: Array, running_M: Array) -> Step:
        """Step the running lanes. The results of the other lanes have no meaning."""

    def step_and_restart(
        self, episodes: Episodes, actions_M: Array, draws_MR: Array, active: Array | bool
    ) -> Step:
        """Step all lanes, and begin a new episode in each lane whose episode ended.

        If `active` is False, the results are not used, and episodes outside of the program must not
        change.
        """


@partial(jax.jit, static_argnums=0)
def begin_episodes(lanes: Lanes, seeds_M: Array) -> Episodes:
    """Begin an episode in every lane, as a separate compiled program."""
    return lanes.begin(seeds_M)


@partial(jax.jit, static_argnums=0)
def go_on(lanes: Lanes, episodes: Episodes, open_M: Array, seeds_M: Array) -> Episodes:
    """Keep the open episodes and begin new ones, as a separate compiled program."""
    return lanes.go_on(episodes, open_M, seeds_M)


def chosen(rows_M: Array, yes: Episodes, no: Episodes) -> Episodes:
    """Return `yes` in the rows where `rows_M` is True, and `no` in the others."""
    return jax.tree.map(
        lambda a, b: jnp.where(rows_M.reshape(-1, *[1] * (a.ndim - 1)), a, b), yes, no
    )


class TwinEpisodes(NamedTuple):
    """The state of M lanes of a twin."""

    states: Array  # (M, S)
    elapsed: Array  # (M,) steps in this episode


@dataclass(frozen=True)
class TwinLanes:
    """Lanes of a pure JAX environment."""

    twin: Twin
    keeps_episodes: bool = True

    @property
    def observation_size(self) -> int:
        return self.twin.observation_size

    @property
    def action_count(self) -> int:
        return self.twin.action_count

    @property
    def start_draws(self) -> int:
        return self.twin.start_draws

    @property
    def _in_kernels(self) -> bool:
        return self.twin.is_costly and jax.default_backend() == "gpu"

    def begin(self, seeds_M: Array) -> TwinEpisodes:
        keys_M = jax.vmap(jax.random.key)(seeds_M)
        draws_MR = jax.vmap(lambda key: jax.random.uniform(key, (self.start_draws,)))(keys_M)
        return self._started(draws_MR)

    def go_on(self, episodes: TwinEpisodes, open_M: Array, seeds_M: Array) -> TwinEpisodes:
        return chosen(open_M, episodes, self.begin(seeds_M))

    def history(self) -> Any:
        return ()

    def replay(self, history: Any) -> None:
        pass

    def observe(self, episodes: TwinEpisodes) -> Array:
        return _rows(self.twin.observe(_numbers(episodes.states)))

    def step(self, episodes: TwinEpisodes, actions_M: Array, running_M: Array) -> Step:
        if self._in_kernels:
            return self._by_kernel(episodes, actions_M)
        state, rewards, terminated = self.twin.step(_numbers(episodes.states), actions_M)
        elapsed = episodes.elapsed + 1
        after = TwinEpisodes(_rows(state), elapsed)
        ended = terminated | (elapsed >= self.twin.step_limit)
        return Step(after, self.observe(after), rewards, terminated, ended)

    def step_and_restart(
        self, episodes: TwinEpisodes, actions_M: Array, draws_MR: Array, active: Array | bool = True
    ) -> Step:
        if self._in_kernels:
            return self._by_kernel(episodes, actions_M, draws_MR)
        step = self.step(episodes, actions_M, jnp.ones_like(actions_M, dtype=bool))
        if not self.twin.is_costly:
            return step._replace(episodes=self._restarted(step, draws_MR))
        after = jax.lax.cond(
            step.ended.any(), lambda: self._restarted(step, draws_MR), lambda: step.episodes
        )
        return step._replace(episodes=after)

    def _by_kernel(
        self, episodes: TwinEpisodes, actions_M: Array, draws_MR: Array | None = None
    ) -> Step:
        states, elapsed, *shown = step_lanes(self.twin, *episodes, actions_M, draws_MR)
        return Step(TwinEpisodes(states, elapsed), *shown)

    def _restarted(self, step: Step, draws_MR: Array) -> TwinEpisodes:
        fresh = self._started(draws_MR)
        states = jnp.where(step.ended[:, None], fresh.states, step.episodes.states)
        elapsed = jnp.where(step.ended, fresh.elapsed, step.episodes.elapsed)
        return TwinEpisodes(states, elapsed)

    def _started(self, draws_MR: Array) -> TwinEpisodes:
        if self._in_kernels:
            states = start_lanes(self.twin, draws_MR)
        else:
            states = _rows(self.twin.start(_numbers(draws_MR)))
        return TwinEpisodes(states, jnp.zeros(states.shape[0], dtype=jnp.int32))


def _numbers(rows_MS: Array) -> Numbers:
    return tuple(rows_MS[:, number] for number in range(rows_MS.shape[1]))


def _rows(numbers: Numbers) -> Array:
    return jnp.stack(numbers, axis=1)

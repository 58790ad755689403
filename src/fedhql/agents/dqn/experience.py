"""The experience of many agents: replay memories and current episodes. Pure, can be traced.

A transition is a row of R = 2 D + 3 numbers: state, next state, action, reward, terminated.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedhql.agents.dqn.draws import episode_seeds, visit_projection
from fedhql.agents.dqn.exploration import VISIT_CODE_BITS
from fedhql.agents.dqn.learner import where
from fedhql.environments.lanes import Episodes, Lanes, Step, begin_episodes

Array = jax.Array


class Experience(NamedTuple):
    """The replay memories, episodes and random keys of L agents, without their learners."""

    replay: Array  # (L, capacity, R)
    episodes: Episodes
    visits: Array  # (L, 2^K, A) for exploration = ucb, else empty
    projections: Array  # (L, K, D) for exploration = ucb, else empty
    keys: Array  # (L, 2) each agent's random key
    env_steps: Array  # () the steps taken so far


def new_experience(
    lanes: Lanes, seeds_L: NDArray[np.uint32], capacity: int, *, counting: bool
) -> Experience:
    """Return experience without transitions; `counting` makes room for visit counts."""
    L, D = len(seeds_L), lanes.observation_size
    boxes = 2**VISIT_CODE_BITS if counting else 0
    keys_L2 = jnp.stack([jnp.zeros(L, dtype=jnp.uint32), jnp.asarray(seeds_L)], axis=1)
    return Experience(
        replay=jnp.zeros((L, capacity, 2 * D + 3), dtype=jnp.float32),
        episodes=begin_episodes(lanes, episode_seeds(keys_L2, 0)),
        visits=jnp.zeros((L, boxes, lanes.action_count), dtype=jnp.int32),
        projections=jnp.stack([jnp.asarray(visit_projection(s, D)) for s in seeds_L])
        if counting
        else jnp.zeros((L, 0, D)),
        keys=keys_L2,
        env_steps=jnp.int32(0),
    )


def remember(
    experience: Experience,
    env_step: Array,
    states_LD: Array,
    actions_L: Array,
    step: Step,
    active: Array | bool,
) -> Experience:
    """Store one env step of every lane over the oldest one; if not `active`, change nothing."""
    columns = (actions_L, step.rewards, step.terminated)
    rows_LR = jnp.concatenate(
        [states_LD, step.observations, *(c.astype(jnp.float32)[:, None] for c in columns)],
        axis=1,
    )
    start = (0, env_step % experience.replay.shape[1], 0)
    oldest = jax.lax.dynamic_slice(
        experience.replay, start, (rows_LR.shape[0], 1, rows_LR.shape[1])
    )
    kept = jnp.where(active, rows_LR[:, None], oldest)
    return experience._replace(
        replay=jax.lax.dynamic_update_slice(experience.replay, kept, start),
        episodes=where(active, step.episodes, experience.episodes),
    )


def last_states(experience: Experience, count: int) -> Array:
    """Return the states before the last `count` env steps: (L, S, D). The first may repeat."""
    capacity, D = experience.replay.shape[1], (experience.replay.shape[2] - 3) // 2
    numbers = jnp.maximum(experience.env_steps - 1 - jnp.arange(count), 0)
    return experience.replay[:, numbers % capacity, :D]


def replayed(experience: Experience, env_steps: Array, draws_LGB: Array) -> Array:
    """Return G batches of B transitions from the first `env_steps` steps: (L, G, B, R)."""
    filled = jnp.minimum(env_steps, experience.replay.shape[1])
    picks = jnp.minimum((draws_LGB * filled).astype(jnp.int32), filled - 1)
    return jax.vmap(lambda replay, pick: replay[pick])(experience.replay, picks)

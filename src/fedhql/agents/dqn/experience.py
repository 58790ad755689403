"""What agents have seen and where they stand, many of them side by side: pure, can be traced.

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
    """What L agents have seen and where they stand; their learners are kept beside it."""

    replay: Array  # (L, capacity, R)
    episodes: Episodes
    visits: Array  # (L, 2^K, A) for exploration = ucb, else empty
    projections: Array  # (L, K, D) likewise
    keys: Array  # (L, 2) each agent's randomness
    env_steps: Array  # () taken so far


def new_experience(
    lanes: Lanes, seeds_L: NDArray[np.uint32], capacity: int, *, counting: bool
) -> Experience:
    """None yet; `counting` visits or not."""
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
    """One env step of every lane, over the oldest that is kept; if not `active`, as it was."""
    columns = (actions_L, step.rewards, step.terminated)
    rows_LR = jnp.concatenate(
        [states_LD, step.observations, *(c.astype(jnp.float32)[:, None] for c in columns)],
        axis=1,
    )
    place = (0, env_step % experience.replay.shape[1], 0)
    there = jax.lax.dynamic_slice(experience.replay, place, (rows_LR.shape[0], 1, rows_LR.shape[1]))
    kept = jnp.where(active, rows_LR[:, None], there)
    return experience._replace(
        replay=jax.lax.dynamic_update_slice(experience.replay, kept, place),
        episodes=where(active, step.episodes, experience.episodes),
    )


def replayed(experience: Experience, env_steps: Array, draws_LGB: Array) -> Array:
    """G batches of B transitions out of those of so many env steps -> (L, G, B, R)."""
    filled = jnp.minimum(env_steps, experience.replay.shape[1])
    picks = jnp.minimum((draws_LGB * filled).astype(jnp.int32), filled - 1)
    rows: Array = jax.vmap(lambda replay, pick: replay[pick])(experience.replay, picks)
    return rows

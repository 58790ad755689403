"""The servers' memories in a compiled program, one per lane: `fedhql.federation.replay` in JAX."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedhql.federation.replay import Transitions, recalled_slots

Array = jax.Array


class Memories(NamedTuple):
    """The latest transitions of every lane's server, in a ring of slots."""

    slots: Transitions
    counts: Array  # (F,) the transitions so far


def empty_memories(lanes: int, slots: int, observation_size: int) -> Memories:
    states, numbers = jnp.zeros((lanes, slots, observation_size)), jnp.zeros((lanes, slots))
    # No two of them may share a buffer, because programs take these arrays over.
    transitions = (states, numbers.astype(int), numbers, states + 0, numbers.astype(bool))
    return Memories(Transitions(*transitions), jnp.zeros(lanes, dtype=jnp.uint32))


def recall(memories: Memories, draws_FR: Array, capacity_F: Array) -> tuple[Transitions, Array]:
    """Return one transition per draw, and (F,) whether the lane has any."""
    slots = memories.slots.actions.shape[1]
    count_F1, capacity_F1 = memories.counts[:, None], capacity_F[:, None]
    slots_FR = recalled_slots(draws_FR, count_F1, capacity_F1, slots)
    recalled = (jax.vmap(jnp.take, (0, 0, None))(rows, slots_FR, 0) for rows in memories.slots)
    return Transitions(*recalled), memories.counts > 0


def remember(memories: Memories, new: Transitions, running_FB: Array) -> Memories:
    """Return the memories with the transitions of running rows."""
    slots = memories.slots.actions.shape[1]
    place_FB = jnp.cumsum(running_FB, axis=1, dtype=jnp.uint32) - 1
    slots_FB = jnp.where(running_FB, (memories.counts[:, None] + place_FB) % slots, slots)
    put = jax.vmap(_put)
    kept = (put(ring, slots_FB, rows) for ring, rows in zip(memories.slots, new, strict=True))
    return Memories(Transitions(*kept), memories.counts + running_FB.sum(axis=1, dtype=jnp.uint32))


def _put(ring: Array, slots_B: Array, rows_B: Array) -> Array:
    return ring.at[slots_B].set(rows_B, mode="drop")  # rows that do not run have no slot

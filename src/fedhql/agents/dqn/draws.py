"""All randomness of an agent: functions of its seed, and of what they are for."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedhql.agents.dqn.exploration import VISIT_CODE_BITS
from fedhql.agents.dqn.network import Network

Array = jax.Array

# What it is for.
_WEIGHTS, _CHUNKS, _EPISODES, _PROJECTION = range(4)


def initial_parameters(network: Network, seed: int) -> NDArray[np.float32]:
    return network.initialise(np.random.default_rng([int(seed), _WEIGHTS]))


def visit_projection(seed: int, observation_size: int) -> NDArray[np.float64]:
    rng = np.random.default_rng([int(seed), _PROJECTION])
    return rng.normal(size=(VISIT_CODE_BITS, observation_size))


@partial(jax.jit, static_argnums=(2, 3))
def chunk_draws(keys_L2: Array, first: Array, chunks: int, words: int) -> Array:
    """Uniform numbers (C, L, W), a function of each agent's key and the chunk's number alone."""

    def draw(chunk: Array, key: Array) -> Array:
        key = jax.random.fold_in(jax.random.fold_in(key, _CHUNKS), chunk)
        return jax.random.uniform(key, (words,))

    chunk_numbers = first + jnp.arange(chunks)
    drawn: Array = jax.vmap(jax.vmap(draw, (None, 0)), (0, None))(chunk_numbers, keys_L2)
    return drawn


@jax.jit
def episode_seeds(keys_L2: Array, env_step: Array) -> Array:
    """Where the lanes' episodes begin that follow no other."""

    def seed(key: Array) -> Array:
        key = jax.random.fold_in(jax.random.fold_in(key, _EPISODES), env_step)
        return jax.random.bits(key, dtype=jnp.uint32)

    seeds: Array = jax.vmap(seed)(keys_L2)
    return seeds

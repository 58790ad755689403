"""All random draws of an agent, as functions of its seed and their purpose."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedhql.agents.dqn.exploration import VISIT_CODE_BITS
from fedhql.agents.dqn.network import Network

Array = jax.Array

# The purposes of draws; each has its own random stream.
_WEIGHTS, _CHUNKS, _EPISODES, _PROJECTION = range(4)


def initial_parameters(network: Network, seed: int) -> NDArray[np.float32]:
    return network.initialise(np.random.default_rng([int(seed), _WEIGHTS]))


def visit_projection(seed: int, observation_size: int) -> NDArray[np.float64]:
    rng = np.random.default_rng([int(seed), _PROJECTION])
    return rng.normal(size=(VISIT_CODE_BITS, observation_size))


@partial(jax.jit, static_argnums=(2, 3))
def chunk_draws(keys_L2: Array, first: Array, chunks: int, words: int) -> Array:
    """Return uniform numbers (C, L, W); they depend only on the agent's key and the chunk."""

    def draw(chunk: Array, key: Array) -> Array:
        key = jax.random.fold_in(jax.random.fold_in(key, _CHUNKS), chunk)
        return jax.random.uniform(key, (words,))

    chunk_numbers = first + jnp.arange(chunks)
    return jax.vmap(jax.vmap(draw, (None, 0)), (0, None))(chunk_numbers, keys_L2)


@jax.jit
def episode_seeds(keys_L2: Array, env_step: Array) -> Array:
    """Return the seeds of episodes that begin at this env step: (L,)."""

    def seed(key: Array) -> Array:
        key = jax.random.fold_in(jax.random.fold_in(key, _EPISODES), env_step)
        return jax.random.bits(key, dtype=jnp.uint32)

    return jax.vmap(seed)(keys_L2)

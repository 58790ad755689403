"""The engines' noise as a function of an episode's seed and the number of the step.

An episode is then a pure function of its first state and its actions, and needs no generator.
"""

import jax.numpy as jnp
import numpy as np

from fedhql.environments.lunar_lander.geometry import Array

GOLDEN_RATIO = 0x9E3779B9  # 2^32 / φ, the usual increment between counters


def uniform(seed: Array, step: Array, draw: int) -> Array:
    """Return a number in [-1, 1), in steps of 2^-23. `draw` numbers the draws of one step."""
    counter = 2 * step.astype(jnp.uint32) + np.uint32(draw + 1)
    bits = mixed(mixed(seed) + counter * np.uint32(GOLDEN_RATIO))
    return (bits >> 8).astype(jnp.int32).astype(jnp.float32) * 2.0**-23 - 1.0


def mixed(bits: Array) -> Array:
    """Scramble 32 bits: the function lowbias32 of Chris Wellons' hash-prospector."""
    bits = (bits ^ (bits >> 16)) * np.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) * np.uint32(0x846CA68B)
    return bits ^ (bits >> 16)

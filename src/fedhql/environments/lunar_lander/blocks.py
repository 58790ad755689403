"""A costly function that runs on some of the lanes only."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array
_LAST = 2**31 - 1
BLOCK = 16  # lanes; with 64, 128 lanes under random actions were half as fast


def replaced(
    function: Callable[[Array], Array],
    rank_M: Array,
    inputs: Array,
    outputs: Array,
    block: int = BLOCK,
) -> Array:
    """Return `outputs`, with the results of `function` in the lanes whose rank is not negative.

    The lanes are gathered into blocks, those of the lowest rank first, and `function` gets one
    block after the other. A lane's result must not depend on the other lanes of its block.
    """
    M = rank_M.shape[0]
    block = min(block, M)
    wanted = rank_M >= 0
    count = jnp.sum(wanted)
    order_M = jnp.argsort(jnp.where(wanted, rank_M, _LAST))
    place_M = jnp.argsort(order_M)
    # The rest of the last block repeats the first lane.
    padded = jnp.pad(jnp.where(jnp.arange(M) < count, order_M, order_M[0]), (0, -M % block))

    def run(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        first, outputs = carry
        lanes = lax.dynamic_slice(padded, (first,), (block,))
        results = function(jnp.take(inputs, lanes, axis=-1))
        # A gather and a selection; XLA turns a scatter into a slow loop on a CPU.
        within = place_M - first
        mine = wanted & (within >= 0) & (within < block)
        spread = jnp.take(results, jnp.clip(within, 0, block - 1), axis=-1)
        return first + block, jnp.where(mine, spread, outputs)

    begun = (jnp.zeros((), count.dtype), outputs)
    return lax.while_loop(lambda carry: carry[0] < count, run, begun)[1]

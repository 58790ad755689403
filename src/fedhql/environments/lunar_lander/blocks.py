"""Trees of arrays as one array, and a costly function that runs on some of the lanes only."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array
_LAST = 2**31 - 1
BLOCK = 16  # lanes; with 64, 128 lanes under random actions were half as fast


def packed(tree: Any) -> Array:
    """Return all numbers of a tree as rows (S, M) of one float32 array. Lanes are the last axis."""
    leaves = jax.tree.leaves(tree)
    M = leaves[0].shape[-1]
    return jnp.concatenate([leaf.astype(jnp.float32).reshape(-1, M) for leaf in leaves])


def unpacked(rows: Array, like: Any) -> Any:
    """Return the tree that `packed` made rows of; `like` has its structure, for one lane."""
    leaves, first = [], 0
    for leaf in jax.tree.leaves(like):
        of_leaf = rows[first : first + leaf.size].reshape(*leaf.shape[:-1], rows.shape[-1])
        leaves.append(of_leaf > 0 if leaf.dtype == bool else of_leaf.astype(leaf.dtype))
        first += leaf.size
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


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

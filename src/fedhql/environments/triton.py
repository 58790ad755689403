"""The operations of Pallas' Triton backend that our GPU kernels use.

JAX 0.11 deprecates the backend. Each function loads it when a kernel calls the function, so that a
CPU never does, and so that only this file changes when JAX removes it.
"""

from typing import Any

import jax

Array = jax.Array
Place = Any  # where to read or write: `reference.at[index]`


def compiler_params(warps: int) -> Any:
    """Return the options of a kernel whose programs have `warps` times 32 threads."""
    from jax.experimental.pallas import triton

    return triton.CompilerParams(num_warps=warps, num_stages=1)


def load(place: Place, mask: Array | None = None, other: float | None = None) -> Array:
    """Read numbers from memory; where `mask` is False, return `other` instead."""
    from jax.experimental.pallas import triton

    return triton.load(place, mask=mask, other=other)


def store(place: Place, values: Array, mask: Array | None = None) -> None:
    """Write numbers to memory where `mask` is True."""
    from jax.experimental.pallas import triton

    triton.store(place, values, mask=mask)


def barrier() -> None:
    """Wait until all threads of a program see what the others have written to memory."""
    from jax.experimental.pallas import triton

    triton.debug_barrier()

"""Adam and SGD on vectors in memory, with PyTorch's steps: see `optimisers`."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedhql.agents.dqn.kernels.matrices import Memory, repeat
from fedhql.agents.dqn.kernels.network import PIECE, TiledNetwork
from fedhql.agents.dqn.kernels.programs import Reference, barrier
from fedhql.agents.dqn.optimisers import Optimiser

Array = jax.Array
Moments = tuple[Any, ...]  # vectors (L, T), or the memory of one: mu and nu of Adam, none of SGD


@dataclass(frozen=True)
class Update:
    """An optimiser that kernels know: Adam, or SGD without momentum if there are no betas."""

    betas: tuple[float, float] | None
    eps: float = 0.0

    @classmethod
    def of(cls, optimiser: Optimiser) -> "Update | None":
        """Return the update of an optimiser, or None if kernels do not know it."""
        own = "betas", "eps"
        keywords = {name: value for name, value in optimiser.keywords if value or name in own}
        if optimiser.name == "sgd" and not keywords:
            return cls(None)
        if optimiser.name == "adam" and keywords.keys() <= set(own):
            (b1, b2), eps = keywords.get("betas", (0.9, 0.999)), keywords.get("eps", 1e-8)
            return cls((b1, b2), eps) if eps else None  # without it, padded weights are 0 / 0
        return None

    # Outside of the kernel

    def moments(self, network: TiledNetwork, state: Any) -> Moments:
        """Return the moments in an optimiser's state, padded."""
        if self.betas is None:
            return ()
        get = optax.tree_utils.tree_get
        return tuple(network.padded(get(state, name)) for name in ("mu", "nu"))

    def corrections(self, state: Any, steps: int) -> Array | None:
        """Return Adam's bias corrections in the next steps: (L, steps, 2)."""
        if self.betas is None:
            return None
        count_L = optax.tree_utils.tree_get(state, "count")
        count_LS = count_L[:, None] + 1 + jnp.arange(steps)
        return jnp.stack([1 - beta**count_LS for beta in self.betas], axis=2)

    def after(self, network: TiledNetwork, state: Any, moments: Moments, steps: int) -> Any:
        """Return the optimiser's state after these steps."""
        if self.betas is None:
            return state
        mu, nu = (network.cut(moment) for moment in moments)
        count = optax.tree_utils.tree_get(state, "count") + steps
        return optax.tree_utils.tree_set(state, mu=mu, nu=nu, count=count)

    # Inside of the kernel

    def apply(
        self,
        parameters: Memory,
        moments: Moments,
        gradient: Memory,
        learning_rate: Array,
        max_norm: Array,
        corrections: Reference | None,
        step: int | Array,
    ) -> None:
        """Clip the gradient by its norm, then change the parameters and moments."""
        pieces = gradient.size // PIECE
        squares = repeat(pieces, lambda at, sums: sums + piece(gradient, at) ** 2, jnp.zeros(PIECE))
        norm = jnp.sqrt(squares.sum())
        clip = jnp.where(norm < max_norm, 1.0, max_norm / norm)

        def change(at: int | Array, _: None) -> None:
            slope = piece(gradient, at) * clip
            if self.betas is not None and corrections is not None:
                slope = self._adam(slope, moments, corrections, step, at)
            put_piece(parameters, at, piece(parameters, at) - learning_rate * slope)

        repeat(pieces, change, None)
        barrier()

    def _adam(
        self, slope: Array, moments: Moments, corrections: Reference, step: Any, at: Any
    ) -> Array:
        assert self.betas is not None
        (b1, b2), (mu, nu) = self.betas, moments
        mean = b1 * piece(mu, at) + (1 - b1) * slope
        square = b2 * piece(nu, at) + (1 - b2) * slope * slope
        put_piece(mu, at, mean)
        put_piece(nu, at, square)
        # A division of each number would take longer than that of these two.
        mean, square = mean * (1 / corrections[step, 0]), square * (1 / corrections[step, 1])
        return mean / (jnp.sqrt(square) + self.eps)


def piece(memory: Memory, at: int | Array) -> Array:
    """Read one piece of a vector."""
    return memory.read(at * PIECE + jnp.arange(PIECE))


def put_piece(memory: Memory, at: int | Array, values: Array) -> None:
    memory.write(at * PIECE + jnp.arange(PIECE), values)

"""The DQN's optimisers as optax transformations, with keywords, defaults and steps of PyTorch's.

`OPTIMISERS` in `config`, which loads no framework, lists their names. `Optimiser` clips the
gradient by its norm before each of them, as PyTorch does.
"""

from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedhql.agents.dqn.config import OPTIMISERS, DqnConfig, Keywords
from fedhql.errors import AgentRefused
from fedhql.plugins import import_plugin

Array = jax.Array
Transformation = Any  # an optax.GradientTransformationExtraArgs; optax ships no types


@dataclass(frozen=True)
class Optimiser:
    """An optimiser by name and keywords; part of a program's shape, so it is hashable."""

    name: str = "adam"
    keywords: Keywords = ()

    def at(self, learning_rate: Any, max_grad_norm: Any) -> Transformation:
        """Return the transformation with its numbers, which may be traced."""
        make = import_plugin("optimizer", OPTIMISERS[self.name], AgentRefused)
        try:
            optimiser = make(learning_rate, **dict(self.keywords))
        except (TypeError, ValueError) as error:
            known = list(signature(make).parameters.values())[1:]
            allowed = ", ".join(p.name for p in known if p.kind != Parameter.VAR_KEYWORD)
            raise AgentRefused(
                f"optimizer_kwargs of optimizer = {self.name!r}: {error}; allowed: {allowed}"
            ) from error
        return optax.named_chain(
            ("clip", optax.clip_by_global_norm(max_grad_norm)), (self.name, optimiser)
        )

    def new_state(self, parameters_P: Array) -> Any:
        """Return the state before the first step, which does not depend on the numbers."""
        return self.at(0.0, 0.0).init(parameters_P)


ADAM = Optimiser()


def optimisers_of(config: DqnConfig) -> tuple[Optimiser, Optimiser]:
    """Return the optimiser of self-learning and that of improvements."""
    return (
        Optimiser(config.optimizer, config.optimizer_kwargs),
        Optimiser(config.improvement_optimiser),
    )


def adam(
    learning_rate: Any,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Transformation:
    b1, b2 = betas
    return _decayed(weight_decay, optax.adam(learning_rate, b1, b2, eps=eps))


def adamw(
    learning_rate: Any,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
) -> Transformation:
    b1, b2 = betas
    return optax.adamw(learning_rate, b1, b2, eps=eps, weight_decay=weight_decay)


def sgd(
    learning_rate: Any,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> Transformation:
    return _decayed(weight_decay, optax.sgd(learning_rate, momentum or None, nesterov))


def rmsprop(
    learning_rate: Any,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    centered: bool = False,
) -> Transformation:
    step = optax.rmsprop(
        learning_rate,
        decay=alpha,
        eps=eps,
        eps_in_sqrt=False,
        centered=centered,
        momentum=momentum or None,
    )
    return _decayed(weight_decay, step)


class NadamState(NamedTuple):
    """What NAdam keeps between steps."""

    steps: Array
    mu: Any  # of gradients
    nu: Any  # of their squares
    mu_product: Array  # of the momentum schedule so far


def nadam(
    learning_rate: Any,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum_decay: float = 4e-3,
) -> Transformation:
    """Return Dozat's NAdam (2016) with its momentum schedule, which optax's own leaves out."""
    b1, b2 = betas

    def momentum(steps: Array) -> Array:
        return b1 * (1 - 0.5 * 0.96 ** (steps * momentum_decay))

    def new_state(parameters: Array) -> NadamState:
        zeros = jnp.zeros_like(parameters)
        return NadamState(jnp.zeros(()), zeros, jnp.copy(zeros), jnp.ones(()))

    def update(
        gradient: Array, state: NadamState, parameters: Any = None, **_: Any
    ) -> tuple[Array, NadamState]:
        steps = state.steps + 1
        now, then = momentum(steps), momentum(steps + 1)
        product = state.mu_product * now
        mu = b1 * state.mu + (1 - b1) * gradient
        nu = b2 * state.nu + (1 - b2) * gradient**2
        scale = jnp.sqrt(nu / (1 - b2**steps)) + eps
        ahead = gradient * (1 - now) / (1 - product) + mu * then / (1 - product * then)
        return -learning_rate * ahead / scale, NadamState(steps, mu, nu, product)

    return _decayed(weight_decay, optax.GradientTransformationExtraArgs(new_state, update))


def _decayed(weight_decay: float, optimiser: Any) -> Transformation:
    """Add weight decay to the gradient, as PyTorch does, unless it is 0."""
    if not weight_decay:
        return optimiser
    return optax.chain(optax.add_decayed_weights(weight_decay), optimiser)

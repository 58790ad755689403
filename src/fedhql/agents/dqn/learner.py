"""The weights of one DQN, and how training and improvement change them. Pure, for one lane."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedhql.agents.dqn.config import MOST_SCALE
from fedhql.agents.dqn.network import Layers, Network, pack
from fedhql.agents.dqn.numbers import Numbers
from fedhql.agents.dqn.optimisers import ADAM, Optimiser
from fedhql.agents.dqn.revival import Revival, new_revival, remember_asked, revive

Array = jax.Array


class Learner(NamedTuple):
    """Everything that training and improvement change."""

    parameters: Array  # (P,) of the online network
    target: Array  # (P,) of the target network
    optimizer: Any  # the state of self-learning's optimiser
    improver: Any  # the state of the improvements' optimiser
    improved: Array  # bool: whether improved since self-learning last began
    loss: Array  # of the last training step
    updates: Array  # training steps so far
    revival: Revival | None  # if the settings revive silent units


class Batch(NamedTuple):
    """B transitions from a replay memory."""

    states: Array  # (B, D)
    next_states: Array  # (B, D)
    actions: Array  # (B,)
    rewards: Array  # (B,)
    terminated: Array  # (B,) 1.0 or 0.0; 0.0 after truncation

    @classmethod
    def from_rows(cls, rows_BR: Array) -> "Batch":
        D = (rows_BR.shape[1] - 3) // 2
        return cls(
            rows_BR[:, :D],
            rows_BR[:, D : 2 * D],
            rows_BR[:, 2 * D].astype(jnp.int32),
            rows_BR[:, 2 * D + 1],
            rows_BR[:, 2 * D + 2],
        )


def new_learner(
    network: Network,
    parameters_P: Array,
    *,
    optimiser: Optimiser = ADAM,
    improver: Optimiser = ADAM,
    revives: bool = False,
) -> Learner:
    # Copies, because a compiled phase reuses the memory of its arguments.
    return Learner(
        parameters_P,
        jnp.copy(parameters_P),
        jax.tree.map(jnp.copy, optimiser.new_state(parameters_P)),
        jax.tree.map(jnp.copy, improver.new_state(parameters_P)),
        jnp.bool_(False),
        jnp.float32(0),
        jnp.int32(0),
        new_revival(network, parameters_P) if revives else None,
    )


def train(
    network: Network,
    learner: Learner,
    numbers: Numbers,
    rows_BR: Array,
    *,
    double: bool,
    optimiser: Optimiser = ADAM,
) -> Learner:
    """Take one optimiser step on the Huber loss of the temporal-difference error, as SB3 does."""
    batch = Batch.from_rows(rows_BR)
    next_q_BA = _q(network, learner.target, batch.next_states, numbers)
    if double:
        choice_B = _q(network, learner.parameters, batch.next_states, numbers).argmax(axis=1)
        best_B = _selected(next_q_BA, choice_B)
    else:
        best_B = next_q_BA.max(axis=1)
    targets_B = batch.rewards + numbers.discount * (1 - batch.terminated) * best_B

    def loss_of(layers: Layers) -> Array:
        q_BA = network.apply(layers, batch.states, numbers.tanh, numbers.depth)
        return optax.losses.huber_loss(_selected(q_BA, batch.actions), targets_B).mean()

    loss, gradient = _value_and_gradient(network, loss_of, learner.parameters)
    step = optimiser.at(numbers.learning_rate, numbers.max_grad_norm)
    change, state = step.update(gradient, learner.optimizer, learner.parameters)
    return learner._replace(
        parameters=learner.parameters + change,
        optimizer=state,
        loss=loss,
        updates=learner.updates + 1,
    )


def improve(
    network: Network,
    learner: Learner,
    numbers: Numbers,
    states_BD: Array,
    actions_B: Array | None,
    targets: Array,
    weights_B: Array,
    *,
    steps: int,
    optimiser: Optimiser = ADAM,
    anyone_begins: Array | None = None,
) -> Learner:
    """Take κ gradient steps on the mean squared error at the chosen actions (Algorithm 1.b).

    With no `actions_B`, `targets` (B, A) are for all actions.
    Adam's step size does not depend on the size of the error, so larger values take more steps to
    reach. With `improvement_value_unit` the step grows with the values, to at most `MOST_SCALE`
    times α̃. With a `revival`, silent units are revived before the first improvement since
    self-learning. For many lanes, `anyone_begins` says whether any lane is at its first one. A row
    of weight 0 has no effect; if all rows have weight 0, nothing changes.
    """
    rows = weights_B.sum()
    ready = _revived(network, learner, numbers, states_BD, weights_B, anyone_begins)

    def mean(of_targets: Array) -> Array:
        of_rows_B = of_targets if actions_B is not None else of_targets.mean(axis=1)
        return (weights_B * of_rows_B).sum() / jnp.maximum(rows, 1)

    def loss_of(layers: Layers) -> Array:
        q_BA = network.apply(layers, states_BD, numbers.tanh, numbers.depth)
        q = q_BA if actions_B is None else _selected(q_BA, actions_B)
        return mean(jnp.square(q - targets))

    size = mean(abs(targets))
    scale = jnp.clip(size / numbers.improvement_value_unit, 1, MOST_SCALE)
    step_size = numbers.improvement_learning_rate * scale
    improvement = optimiser.at(step_size, numbers.improvement_max_grad_norm)

    def step(_: Array, carry: tuple[Array, Any]) -> tuple[Array, Any]:
        parameters_P, improver = carry
        _, gradient = _value_and_gradient(network, loss_of, parameters_P)
        change, improver = improvement.update(gradient, improver, parameters_P)
        return parameters_P + change, improver

    parameters_P, improver = jax.lax.fori_loop(0, steps, step, (ready.parameters, ready.improver))
    after = ready._replace(parameters=parameters_P, improver=improver, improved=jnp.bool_(True))
    return Learner(*where(rows > 0, after, learner))


def begins_improving(learner: Learner, weights_B: Array) -> Array:
    """Return whether this is the first improvement since self-learning that has any rows."""
    return ~learner.improved & (weights_B.sum(axis=-1) > 0)


def _revived(
    network: Network,
    learner: Learner,
    numbers: Numbers,
    states_BD: Array,
    weights_B: Array,
    anyone_begins: Array | None,
) -> Learner:
    if learner.revival is None:
        return learner
    begins = begins_improving(learner, weights_B)
    revival = remember_asked(learner.revival, states_BD, weights_B)
    before = learner.parameters, (learner.optimizer, learner.improver)
    # Under vmap a condition that differs between lanes would compute both results.
    parameters_P, (optimizer, improver) = jax.lax.cond(
        begins if anyone_begins is None else anyone_begins,
        lambda: where(begins, revive(network, *before, revival, numbers.tanh), before),
        lambda: before,
    )
    return learner._replace(
        parameters=parameters_P, optimizer=optimizer, improver=improver, revival=revival
    )


def update_target(times: Array | int, learner: Learner, numbers: Numbers) -> Learner:
    """Apply `times` polyak updates to the target network, without training in between."""
    gap = (1 - numbers.tau) ** times * (learner.target - learner.parameters)
    return learner._replace(target=learner.parameters + gap)


def begin_self_learning(learner: Learner, numbers: Numbers) -> Learner:
    """Copy improved weights into the target network, if the settings say so."""
    copy = learner.improved & numbers.target_follows_improvement
    return learner._replace(
        target=jnp.where(copy, learner.parameters, learner.target), improved=jnp.bool_(False)
    )


def where(condition: Array | bool, yes: Any, no: Any) -> Any:
    """Choose between two trees of arrays by one boolean."""
    if condition is True:
        return yes
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def _value_and_gradient(
    network: Network, loss_of: Callable[[Layers], Array], parameters_P: Array
) -> tuple[Array, Array]:
    """Differentiate by layers: the gradient of slices of one vector would be padded and summed."""
    loss, gradients = jax.value_and_grad(loss_of)(network.unpack(parameters_P))
    return loss, pack(gradients)


def _q(network: Network, parameters_P: Array, states_BD: Array, numbers: Numbers) -> Array:
    return network.q_values(parameters_P, states_BD, numbers.tanh, numbers.depth)


def _selected(q_BA: Array, actions_B: Array) -> Array:
    """Return q at the chosen actions, as a sum: the gradient of a gather would be a scatter."""
    chosen_BA = actions_B[:, None] == jnp.arange(q_BA.shape[1])
    return jnp.where(chosen_BA, q_BA, 0).sum(axis=1)

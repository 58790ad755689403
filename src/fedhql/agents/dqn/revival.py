"""Reinitialise silent units: a ReLU that outputs 0 at every state has no gradient to recover.

At large learning rates self-learning can silence most units of a network. We suspect that the
others cannot represent the federation's targets. The functions are pure and work on one lane.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedhql.agents.dqn.config import REMEMBERED_BROADCASTS, STATES_OF_EACH
from fedhql.agents.dqn.network import Network, pack

Array = jax.Array


class Revival(NamedTuple):
    """What an agent keeps in order to revive silent units."""

    initial: Array  # (P,) the initial parameters
    asked: Array  # (S, D) a sample of the states of the last broadcasts, oldest first


def new_revival(network: Network, parameters_P: Array) -> Revival:
    # A unit outputs NaN at NaN, so no unit counts as silent until all rows are filled.
    size = REMEMBERED_BROADCASTS * STATES_OF_EACH, network.inputs
    return Revival(jnp.copy(parameters_P), jnp.full(size, jnp.nan, dtype=jnp.float32))


def remember_asked(revival: Revival, states_BD: Array, weights_B: Array) -> Revival:
    """Remember states that are spread evenly over the broadcast's rows of weight 1."""
    rows = weights_B.sum()
    numbers = jnp.floor(jnp.arange(STATES_OF_EACH) * rows / STATES_OF_EACH)
    indices = (jnp.cumsum(weights_B) <= numbers[:, None]).sum(axis=1)
    asked = jnp.concatenate([revival.asked[STATES_OF_EACH:], states_BD[indices]])
    return revival._replace(asked=asked)


def revive(
    network: Network, parameters_P: Array, moments: Any, revival: Revival, tanh: Array
) -> tuple[Array, Any]:
    """Reinitialise units that are silent at all remembered states.

    A silent unit gets its initial weights and bias, or their negatives if it would be silent with
    those too. Its outgoing weights become 0, so that the values at the remembered states do not
    change. The optimisers' moments of these weights become 0. Return the parameters and moments.
    """
    layers, initial = network.unpack(parameters_P), network.unpack(revival.initial)
    changed = [(jnp.zeros(w.shape, bool), jnp.zeros(b.shape, bool)) for w, b in layers]
    below_SU = revival.asked
    for number in range(len(network.hidden)):
        weights, biases = layers[number]
        silent_U = ~(network.activate(below_SU @ weights + biases, tanh) != 0).any(axis=0)
        weights_0, biases_0 = initial[number]
        awake_U = (network.activate(below_SU @ weights_0 + biases_0, tanh) != 0).any(axis=0)
        sign_U = jnp.where(awake_U, 1, -1)
        weights = jnp.where(silent_U, sign_U * weights_0, weights)
        biases = jnp.where(silent_U, sign_U * biases_0, biases)
        layers[number] = weights, biases
        changed[number] = changed[number][0] | silent_U, changed[number][1] | silent_U
        for reader in network.readers(number):
            onward, its_biases = layers[reader]
            layers[reader] = jnp.where(silent_U[:, None], 0, onward), its_biases
            changed[reader] = changed[reader][0] | silent_U[:, None], changed[reader][1]
        below_SU = network.activate(below_SU @ weights + biases, tanh)
    changed_P = pack(changed)

    def forget(moment: Array) -> Array:
        return jnp.where(changed_P, 0, moment) if moment.shape == changed_P.shape else moment

    return pack(layers), jax.tree.map(forget, moments)

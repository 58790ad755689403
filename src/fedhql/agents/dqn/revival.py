"""Silent units begin anew: a ReLU that answers 0 to every state has no gradient to recover by.

At large learning rates self-learning can silence most of a network's units, and what is left cannot
hold what the federation teaches. Pure, for one lane.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedhql.agents.dqn.config import REMEMBERED_BROADCASTS, STATES_OF_EACH
from fedhql.agents.dqn.network import Network, pack

Array = jax.Array


class Revival(NamedTuple):
    """What an agent needs to know for it."""

    initial: Array  # (P,) the parameters it began with
    asked: Array  # (S, D) of the states that it was last improved at, oldest first


def new_revival(network: Network, parameters_P: Array) -> Revival:
    # What a unit answers to NaN is not 0: none counts as silent before enough has been asked.
    size = REMEMBERED_BROADCASTS * STATES_OF_EACH, network.inputs
    return Revival(jnp.copy(parameters_P), jnp.full(size, jnp.nan, dtype=jnp.float32))


def remember_asked(revival: Revival, states_BD: Array, weights_B: Array) -> Revival:
    """With states spread evenly over the broadcast's rows; those of weight 0 are not there."""
    rows = weights_B.sum()
    numbers = jnp.floor(jnp.arange(STATES_OF_EACH) * rows / STATES_OF_EACH)
    places = (jnp.cumsum(weights_B) <= numbers[:, None]).sum(axis=1)
    asked = jnp.concatenate([revival.asked[STATES_OF_EACH:], states_BD[places]])
    return revival._replace(asked=asked)


def revive(
    network: Network, parameters_P: Array, moments: Any, revival: Revival, tanh: Array
) -> tuple[Array, Any]:
    """-> parameters, and optimisers' states, in which no unit is silent at all states asked.

    A silent unit has its initial weights and bias back, or their negatives, if it would be silent
    with those too. Nobody listens to it at first: its outgoing weights are 0, so that the values at
    the states asked stay as they are. What optimisers know of these weights is forgotten.
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

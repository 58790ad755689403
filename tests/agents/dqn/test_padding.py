"""A padded network gives the same values and learns the same as the original network."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedhql.agents.dqn.config import DqnConfig
from fedhql.agents.dqn.draws import initial_parameters
from fedhql.agents.dqn.learner import Learner, improve, new_learner, train
from fedhql.agents.dqn.network import Network, embed, extract, padded
from fedhql.agents.dqn.numbers import Numbers, numbers_of

D, A, B = 3, 2, 6
CONFIGS = (
    DqnConfig(hidden=(8,), activation="relu", learning_rate=0.01),
    DqnConfig(hidden=(4, 4), activation="tanh", learning_rate=0.02),
    DqnConfig(hidden=(3, 5, 2), activation="relu", learning_rate=0.03),
    DqnConfig(hidden=(), learning_rate=0.04),  # a linear one
)
SLOTS = pytest.mark.parametrize("slot", range(len(CONFIGS)))
NETWORKS = tuple(Network(D, c.hidden, A, c.activation) for c in CONFIGS)
POPULATION = padded(NETWORKS)
NUMBERS = numbers_of(CONFIGS, discount=0.9, budget_env_steps=100)
RNG = np.random.default_rng(0)
STATES_BD = RNG.normal(size=(B, D)).astype(np.float32)
EXCHANGE = STATES_BD, RNG.integers(A, size=B), RNG.normal(size=B).astype(np.float32)
ROWS_BR = np.column_stack(
    [RNG.normal(size=(B, 2 * D)), RNG.integers(A, size=B), RNG.normal(size=B), np.arange(B) % 2]
).astype(np.float32)
close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)


def learn(network: Network, learner: Learner, numbers: Numbers) -> Learner:
    """Take a training step and an improvement."""
    learner = train(network, learner, numbers, jnp.asarray(ROWS_BR), double=False)
    states, actions, targets = (jnp.asarray(part) for part in EXCHANGE)
    return improve(network, learner, numbers, states, actions, targets, jnp.ones(B), steps=2)


@pytest.fixture(scope="module")
def together() -> Learner:
    """Return all agents after learning as one padded population."""
    vectors = [embed(initial_parameters(n, 5), n, POPULATION) for n in NETWORKS]
    learners = jax.vmap(partial(new_learner, POPULATION))(jnp.stack(vectors))
    more = jax.jit(jax.vmap(partial(learn, POPULATION)))
    for _ in range(3):
        learners = more(learners, NUMBERS)
    return learners


def test_equal_networks_need_no_padding() -> None:
    assert padded([NETWORKS[1]] * 3) == NETWORKS[1]


@pytest.mark.parametrize("network", NETWORKS)
def test_extract_inverts_embed(network: Network) -> None:
    own = initial_parameters(network, 5)
    held = embed(own, network, POPULATION)
    assert held.shape == (POPULATION.parameter_count,)
    np.testing.assert_array_equal(extract(held, network, POPULATION), own)
    # There are as many nonzero numbers as the network has, so the padding is all zeros.
    assert np.count_nonzero(held) == np.count_nonzero(own) == network.parameter_count


@SLOTS
def test_a_padded_network_gives_the_same_values(slot: int) -> None:
    network = NETWORKS[slot]
    own = initial_parameters(network, 5)
    held = jnp.asarray(embed(own, network, POPULATION))
    of_slot = NUMBERS.tanh[slot], NUMBERS.depth[slot]
    close(POPULATION.q_values(held, STATES_BD, *of_slot), network.q_values(own, STATES_BD))


@SLOTS
def test_a_padded_network_learns_the_same_as_alone(slot: int, together: Learner) -> None:
    network = NETWORKS[slot]
    numbers = Numbers(*(number[slot] for number in NUMBERS))
    alone = before = new_learner(network, jnp.asarray(initial_parameters(network, 5)))
    more = jax.jit(partial(learn, network))
    for _ in range(3):
        alone = more(alone, numbers)
    mine: Any = jax.tree.map(lambda array: array[slot], together)
    close(extract(np.asarray(mine.parameters), network, POPULATION), alone.parameters)
    close(mine.loss, alone.loss)
    assert np.abs(alone.parameters - before.parameters).max() > 0.01  # the network has changed


@SLOTS
def test_padding_stays_exactly_zero(slot: int, together: Learner) -> None:
    """The optimisers' moments stay zero too; otherwise later steps would change the padding."""
    vectors = (leaf[slot] for leaf in jax.tree.leaves(together) if leaf.ndim == 2)
    checked = 0
    for vector in map(np.asarray, vectors):
        again = embed(extract(vector, NETWORKS[slot], POPULATION), NETWORKS[slot], POPULATION)
        np.testing.assert_array_equal(vector, again)
        checked += 1
    assert checked == 6  # parameters, target, two moments of each of two Adams

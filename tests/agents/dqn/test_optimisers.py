"""Every optimiser of our DQN takes PyTorch's steps, alone and in a padded population."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from fedhql.agents.dqn.config import OPTIMISERS, DqnConfig
from fedhql.agents.dqn.draws import initial_parameters
from fedhql.agents.dqn.learner import Learner, new_learner, train
from fedhql.agents.dqn.network import Network, embed, extract, padded
from fedhql.agents.dqn.numbers import Numbers, numbers_of
from fedhql.agents.dqn.optimisers import Optimiser, optimisers_of
from fedhql.agents.kind_settings import DqnSettings
from fedhql.errors import AgentRefused
from tests.agents.dqn.test_learner import DISCOUNT, RELU, TANH, batches, learner_of, numbers
from tests.agents.dqn.torch_reference import put, sb3_dqn, sb3_train, weights

PYTORCHS = {
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
}
KEYWORDS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in OPTIMISERS),
    ("adam", {"betas": [0.8, 0.99], "eps": 1e-3, "weight_decay": 0.1}),
    ("sgd", {"momentum": 0.9, "weight_decay": 0.1}),
    ("sgd", {"momentum": 0.9, "nesterov": True}),
    ("rmsprop", {"alpha": 0.9, "eps": 1e-3, "momentum": 0.5, "centered": True}),
    ("adamw", {"betas": [0.8, 0.99], "weight_decay": 0.1}),
    ("nadam", {"betas": [0.8, 0.99], "momentum_decay": 0.1, "weight_decay": 0.1}),
]


def ours(name: str, keywords: dict[str, Any]) -> Optimiser:
    settings = DqnSettings(optimizer=name, optimizer_kwargs=keywords)
    return optimisers_of(settings.config())[0]


def with_fresh_state(learner: Learner, optimiser: Optimiser) -> Learner:
    return learner._replace(optimizer=optimiser.new_state(learner.parameters))


def test_every_optimiser_has_a_counterpart_in_pytorch() -> None:
    assert set(PYTORCHS) == set(OPTIMISERS)


@pytest.mark.parametrize(("name", "keywords"), KEYWORDS)
def test_each_step_equals_stable_baselines3s_with_pytorchs_optimiser(
    name: str, keywords: dict[str, Any]
) -> None:
    network = TANH if keywords else RELU
    settings: dict[str, Any] = {"learning_rate": 0.01, "max_grad_norm": 10.0}
    optimiser = ours(name, keywords)
    learner = with_fresh_state(learner_of(network), optimiser)
    theirs = sb3_dqn(
        network,
        np.asarray(learner.parameters),
        gamma=DISCOUNT,
        optimizer=PYTORCHS[name],
        optimizer_kwargs=keywords,
        **settings,
    )
    put(theirs.q_net_target, network, np.asarray(learner.target))
    step = jax.jit(partial(train, network, double=False, optimiser=optimiser))
    for rows_BR in batches(8):
        learner = step(learner, numbers(**settings), rows_BR)
        sb3_train(theirs, rows_BR)
        np.testing.assert_allclose(learner.parameters, weights(theirs.q_net), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_padded_agent_takes_the_steps_it_takes_alone(name: str) -> None:
    """The padding and its moments in the optimiser stay exactly zero."""
    configs = [DqnConfig(hidden=(5,), optimizer=name), DqnConfig(hidden=(3, 2), optimizer=name)]
    networks = [Network(3, c.hidden, 3, c.activation) for c in configs]
    population = padded(networks)
    both = numbers_of(configs, discount=DISCOUNT, budget_env_steps=100)
    optimiser = Optimiser(name)
    vectors = [embed(initial_parameters(n, 5), n, population) for n in networks]
    begin = partial(new_learner, optimiser=optimiser)
    together = jax.vmap(partial(begin, population))(jnp.stack(vectors))
    alone = [begin(n, jnp.asarray(initial_parameters(n, 5))) for n in networks]
    step = partial(train, double=False, optimiser=optimiser)
    of_all = jax.jit(jax.vmap(partial(step, population), (0, 0, None)))
    of_one = jax.jit(step, static_argnums=0)
    for rows_BR in batches(3):
        rows = jnp.asarray(rows_BR)
        together = of_all(together, both, rows)
        alone = [
            of_one(n, learner, Numbers(*(number[slot] for number in both)), rows)
            for slot, (n, learner) in enumerate(zip(networks, alone, strict=True))
        ]
    for slot, network in enumerate(networks):
        mine = np.asarray(together.parameters[slot])
        np.testing.assert_allclose(
            extract(mine, network, population), alone[slot].parameters, rtol=1e-5, atol=1e-6
        )
        vectors_P = [leaf[slot] for leaf in jax.tree.leaves(together) if leaf.ndim == 2]
        assert len(vectors_P) >= 2
        for vector in map(np.asarray, vectors_P):
            again = embed(extract(vector, network, population), network, population)
            np.testing.assert_array_equal(vector, again)


def test_an_unknown_keyword_is_refused_with_those_that_are_allowed() -> None:
    with pytest.raises(AgentRefused, match=r"optimizer = 'sgd': .*'rho'.*momentum, nesterov"):
        ours("sgd", {"rho": 1}).at(0.1, 1.0)


def test_any_optax_factory_works_as_an_optimiser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIMISERS, "lion", "optax:lion")
    optimiser = Optimiser("lion", (("b1", 0.8),))
    learner = with_fresh_state(learner_of(RELU), optimiser)
    rows = jnp.asarray(batches(1)[0])
    after = train(
        RELU, learner, numbers(learning_rate=0.5), rows, double=False, optimiser=optimiser
    )
    moved = np.abs(np.asarray(after.parameters - learner.parameters))
    assert set(np.unique(moved.round(3))) <= {0.0, 0.5}  # lion steps by the sign of the gradient
    assert (moved > 0).any()

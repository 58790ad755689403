"""Training equals stable-baselines3's; improvement equals PyTorch's steps on the squared error."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from fedhql.agents.dqn.config import MOST_SCALE, DqnConfig
from fedhql.agents.dqn.draws import initial_parameters
from fedhql.agents.dqn.learner import (
    Learner,
    begin_self_learning,
    improve,
    new_learner,
    train,
    update_target,
)
from fedhql.agents.dqn.network import Network
from fedhql.agents.dqn.numbers import Numbers, numbers_of
from fedhql.agents.dqn.optimisers import Optimiser
from tests.agents.dqn.torch_reference import (
    Floats,
    put,
    sb3_dqn,
    sb3_train,
    torch_improve,
    weights,
)

D, A, B = 3, 3, 8
RELU, TANH = Network(D, (8,), A, "relu"), Network(D, (4, 4), A, "tanh")
NETWORKS = pytest.mark.parametrize("network", [RELU, TANH], ids=["relu", "tanh"])
DISCOUNT, KAPPA = 0.9, 5
# The libraries sum in another order, and each of a dozen steps divides by a small root.
close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)

_train = jax.jit(train, static_argnums=0, static_argnames="double")
_improve = jax.jit(partial(improve, steps=KAPPA), static_argnums=0, static_argnames="optimiser")


def numbers(**settings: Any) -> Numbers:
    of_one = numbers_of([DqnConfig(**settings)], discount=DISCOUNT, budget_env_steps=100)
    return Numbers(*(number[0] for number in of_one))


def learner_of(network: Network) -> Learner:
    """Return a learner whose target network differs from its online network."""
    learner = new_learner(network, jnp.asarray(initial_parameters(network, 0)))
    return learner._replace(target=jnp.asarray(initial_parameters(network, 1)))


def batches(count: int) -> list[Floats]:
    """Return batches of replay rows. Every other batch is so large that its gradient is clipped.

    Adam would hide a wrong factor that is constant, but not one that alternates.
    """
    rng = np.random.default_rng(0)
    made = []
    for number in range(count):
        scale = 20.0 if number % 2 else 0.3
        states = rng.normal(size=(B, 2 * D)) * scale
        rest = [rng.integers(A, size=B), rng.normal(size=B) * scale, rng.integers(2, size=B)]
        made.append(np.column_stack([states, *rest]).astype(np.float32))
    return made


def exchanges() -> list[tuple[Floats, Any, Floats]]:
    """Return (states, actions, targets) of two improvements; the first targets are far away."""
    rng = np.random.default_rng(1)
    states = rng.normal(size=(2, B, D)).astype(np.float32)
    targets = (rng.normal(size=(2, B)) * [[100], [1]]).astype(np.float32)
    return list(zip(states, rng.integers(A, size=(2, B)), targets, strict=True))


@pytest.mark.parametrize(
    ("network", "double", "max_grad_norm"),
    [(RELU, False, 10.0), (TANH, False, 10.0), (TANH, False, 0.5), (RELU, True, 10.0)],
)
def test_training_equals_stable_baselines3s(
    network: Network, double: bool, max_grad_norm: float
) -> None:
    settings: dict[str, Any] = {"learning_rate": 0.01, "max_grad_norm": max_grad_norm}
    learner = learner_of(network)
    start = np.asarray(learner.parameters)
    theirs = sb3_dqn(network, start, double=double, gamma=DISCOUNT, **settings)
    put(theirs.q_net_target, network, np.asarray(learner.target))
    for number, rows_BR in enumerate(batches(12), start=1):
        learner = _train(network, learner, numbers(**settings), rows_BR, double=double)
        assert float(learner.loss) == pytest.approx(sb3_train(theirs, rows_BR), rel=1e-4)
        assert int(learner.updates) == number
    close(learner.parameters, weights(theirs.q_net))


@NETWORKS
@pytest.mark.parametrize(
    ("optimiser", "kind"), [("adam", torch.optim.Adam), ("sgd", torch.optim.SGD)]
)
def test_improvement_equals_pytorchs(
    network: Network, optimiser: str, kind: type[torch.optim.Optimizer]
) -> None:
    """Its optimiser keeps its state over two exchanges; that of training does not change."""
    improver = Optimiser(optimiser)
    learner = learner_of(network)
    learner = before = learner._replace(improver=improver.new_state(learner.parameters))
    chosen = numbers(improvement_learning_rate=0.01, improvement_max_grad_norm=10.0)
    for exchange in exchanges():
        learner = _improve(network, learner, chosen, *exchange, jnp.ones(B), optimiser=improver)
    expected = torch_improve(
        network,
        np.asarray(before.parameters),
        exchanges(),
        steps=KAPPA,
        learning_rate=0.01,
        max_grad_norm=10.0,
        kind=kind,
    )
    close(learner.parameters, expected)
    assert bool(learner.improved)
    untouched = ("target", "optimizer", "loss", "updates")
    for name in untouched:
        jax.tree.map(np.testing.assert_array_equal, getattr(learner, name), getattr(before, name))


@pytest.mark.parametrize(("times", "scale"), [(0.5, 1), (2.5, 2.5), (40, MOST_SCALE)])
def test_larger_values_have_a_larger_learning_rate(times: float, scale: float) -> None:
    """The mean |target| over rows of weight 1 is `times` the unit."""
    states, actions, targets = exchanges()[0]
    there = WEIGHTS_B == 1
    unit = float(abs(targets[there]).mean() / times)
    chosen = numbers(improvement_learning_rate=0.01, improvement_value_unit=unit)
    learner = _improve(RELU, learner_of(RELU), chosen, states, actions, targets, WEIGHTS_B)
    expected = torch_improve(
        RELU,
        np.asarray(learner_of(RELU).parameters),
        [(states[there], actions[there], targets[there])],
        steps=KAPPA,
        learning_rate=0.01 * scale,
        max_grad_norm=DqnConfig.improvement_max_grad_norm,
    )
    close(learner.parameters, expected)


WEIGHTS_B = np.array([1, 0, 0, 1, 0, 0, 0, 0], dtype=np.float32)


def improved_with_absent(state: float, target: float) -> Learner:
    """Improve on two exchanges; in the first, rows of weight 0 hold these values."""
    states, actions, targets = (np.array(part) for part in exchanges()[0])
    states[WEIGHTS_B == 0], targets[WEIGHTS_B == 0] = state, target
    # Without clipping, Adam's result shows whether the mean is over rows of weight 1 only.
    unclipped, ones_B = numbers(improvement_max_grad_norm=1e9), np.ones(B, dtype=np.float32)
    once = _improve(RELU, learner_of(RELU), unclipped, states, actions, targets, WEIGHTS_B)
    twice: Learner = _improve(RELU, once, unclipped, *exchanges()[1], ones_B)
    return twice


def test_rows_of_weight_0_have_no_effect() -> None:
    first, second = exchanges()
    there = WEIGHTS_B == 1
    expected = torch_improve(
        RELU,
        np.asarray(learner_of(RELU).parameters),
        [(first[0][there], first[1][there], first[2][there]), second],
        steps=KAPPA,
        learning_rate=DqnConfig.improvement_learning_rate,
        max_grad_norm=1e9,
    )
    learner = improved_with_absent(1e3, -1e3)
    close(learner.parameters, expected)
    jax.tree.map(np.testing.assert_array_equal, learner, improved_with_absent(0.0, 7.0))


@pytest.mark.parametrize("improved", [False, True])
def test_an_improvement_without_rows_changes_nothing(improved: bool) -> None:
    before = learner_of(RELU)._replace(improved=jnp.bool_(improved))
    # An optimiser with moments would take a step even without a gradient.
    before = _improve(RELU, before, numbers(), *exchanges()[0], jnp.ones(B))
    before = before._replace(improved=jnp.bool_(improved))
    after = _improve(RELU, before, numbers(), *exchanges()[1], jnp.zeros(B))
    jax.tree.map(np.testing.assert_array_equal, after, before)


def test_follow_equals_stable_baselines3s_polyak_updates() -> None:
    learner = learner_of(RELU)
    target, online = np.asarray(learner.target), np.asarray(learner.parameters)
    once = 0.7 * target + 0.3 * online
    close(update_target(1, learner, numbers(tau=0.3)).target, once)
    thrice = 0.7 * (0.7 * once + 0.3 * online) + 0.3 * online
    close(update_target(3, learner, numbers(tau=0.3)).target, thrice)
    np.testing.assert_array_equal(update_target(2, learner, numbers(tau=1.0)).target, online)


@pytest.mark.parametrize("follows", [True, False])
@pytest.mark.parametrize("improved", [True, False])
def test_the_target_takes_improved_weights_if_the_settings_say_so(
    improved: bool, follows: bool
) -> None:
    before = learner_of(RELU)._replace(improved=jnp.bool_(improved))
    after = begin_self_learning(before, numbers(target_follows_improvement=follows))
    expected = before.parameters if improved and follows else before.target
    np.testing.assert_array_equal(after.target, expected)
    assert not bool(after.improved)


def test_initial_weights_are_distributed_like_pytorchs() -> None:
    """Weights and biases are uniform in ±1/sqrt(fan in); a seed determines the network."""
    network = Network(9, (400,), 100, "relu")
    vector = initial_parameters(network, 3)
    assert vector.dtype == np.float32
    for layer_weights, biases in network.unpack(vector):
        fan_in = len(layer_weights)
        for part in (layer_weights, biases):
            assert np.abs(part).max() <= fan_in**-0.5
            assert np.abs(part).max() > 0.95 * fan_in**-0.5
            # The standard deviation of a uniform number; 6 standard errors are below 0.25 of it.
            assert part.std() == pytest.approx(fan_in**-0.5 / 3**0.5, rel=0.25)
    np.testing.assert_array_equal(vector, initial_parameters(network, 3))
    assert (vector != initial_parameters(network, 4)).mean() > 0.99

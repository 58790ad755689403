"""Units that are silent at all remembered states are reinitialised; others do not change."""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from fedhql.agents.dqn.agent import DqnAgent
from fedhql.agents.dqn.config import REMEMBERED_BROADCASTS, STATES_OF_EACH, DqnConfig
from fedhql.agents.dqn.draws import initial_parameters
from fedhql.agents.dqn.learner import Learner, improve, new_learner
from fedhql.agents.dqn.network import Network, embed, padded
from fedhql.agents.dqn.numbers import Numbers, numbers_of
from fedhql.agents.dqn.revival import Revival, new_revival, remember_asked, revive
from fedhql.agents.sb3.unit_revival import UnitRevival
from fedhql.environments.make import make_environment
from fedhql.errors import AgentRefused
from tests.agents.dqn.torch_reference import Floats, put, torch_module, weights

D, A, B = 4, 2, 8
NETWORK = Network(D, (6, 5), A, "relu")
FIRST, SECOND = slice(1, 4), slice(2, 4)  # the units of each layer that are silenced
RNG = np.random.default_rng(0)
ASKED_SD = RNG.normal(size=(REMEMBERED_BROADCASTS * STATES_OF_EACH, D)).astype(np.float32)
INITIAL_P = initial_parameters(NETWORK, 0)
NUMBERS = Numbers(
    *(n[0] for n in numbers_of([DqnConfig()], discount=0.9, budget_env_steps=100)),
)
EXCHANGE = ASKED_SD[:B], np.arange(B) % A, np.ones(B, dtype=np.float32), np.ones(B)
_improve = jax.jit(partial(improve, steps=2), static_argnums=0)


def silenced(network: Network = NETWORK, parameters_P: Floats = INITIAL_P) -> Floats:
    """Return weights that differ from the initial ones, with units that always output 0."""
    vector = parameters_P + np.float32(0.01)
    layers = network.unpack(vector)
    layers[0][1][FIRST] = layers[1][1][SECOND] = -100
    return vector


def answers(parameters_P: Any, network: Network = NETWORK) -> list[Floats]:
    """Return the outputs of every hidden layer at the remembered states."""
    below, all_of_them = ASKED_SD, []
    for layer_weights, biases in network.unpack(np.asarray(parameters_P))[: len(network.hidden)]:
        below = network.activate(below @ layer_weights + biases)
        all_of_them.append(below)
    return all_of_them


def revival(network: Network = NETWORK) -> Revival:
    return new_revival(network, jnp.asarray(INITIAL_P))._replace(asked=jnp.asarray(ASKED_SD))


def test_no_unit_stays_silent_and_the_values_do_not_change() -> None:
    before_P = silenced()
    after_P, _ = revive(NETWORK, jnp.asarray(before_P), (), revival(), NUMBERS.tanh)
    silent = [~(layer != 0).any(axis=0) for layer in answers(before_P)]
    assert silent[0].tolist() == [False, True, True, True, False, False]
    assert silent[1].sum() >= 2
    assert all((layer != 0).any(axis=0).all() for layer in answers(after_P))
    values = partial(NETWORK.q_values, states_BD=ASKED_SD)
    np.testing.assert_allclose(values(np.asarray(after_P)), values(before_P), rtol=1e-5, atol=1e-6)


def test_only_weights_and_moments_of_silent_units_change() -> None:
    before_P, ones_P = silenced(), jnp.ones(INITIAL_P.size)
    after_P, (moment_P, count) = revive(
        NETWORK, jnp.asarray(before_P), (ones_P, jnp.int32(7)), revival(), NUMBERS.tanh
    )
    silent_1, silent_2 = (~(layer != 0).any(axis=0) for layer in answers(before_P))
    before, after = NETWORK.unpack(before_P), NETWORK.unpack(np.asarray(after_P))
    moment, initial = NETWORK.unpack(np.asarray(moment_P)), NETWORK.unpack(INITIAL_P)
    assert count == 7
    for at, silent in ((0, silent_1), (1, silent_2)):
        for part in (0, 1):
            kept = after[at][part][..., silent] / initial[at][part][..., silent]
            np.testing.assert_allclose(np.abs(kept), 1, rtol=1e-6)  # or their negatives
            assert (moment[at][part][..., silent] == 0).all()
    for at, silent, reborn in ((1, silent_1, silent_2), (2, silent_2, np.zeros(A, dtype=bool))):
        assert (after[at][0][silent][:, ~reborn] == 0).all()
        assert (moment[at][0][silent] == 0).all()
        others = np.ix_(~silent, ~reborn)
        np.testing.assert_array_equal(after[at][0][others], before[at][0][others])
        assert (moment[at][0][others] == 1).all()


def test_an_initially_silent_unit_gets_the_negatives() -> None:
    initial_P = INITIAL_P.copy()
    NETWORK.unpack(initial_P)[0][1][0] = -50
    gone_P = initial_P.copy()
    NETWORK.unpack(gone_P)[0][1][0] = -100
    knows = revival()._replace(initial=jnp.asarray(initial_P))
    after_P, _ = revive(NETWORK, jnp.asarray(gone_P), (), knows, NUMBERS.tanh)
    assert NETWORK.unpack(np.asarray(after_P))[0][1][0] == 50


def test_a_tanh_network_has_no_silent_units() -> None:
    network = Network(D, (6, 5), A, "tanh")
    before_P = silenced(network)
    after_P, _ = revive(network, jnp.asarray(before_P), (), revival(network), NUMBERS.tanh)
    np.testing.assert_array_equal(after_P, before_P)


def test_the_pytorch_version_does_the_same() -> None:
    module = torch_module(NETWORK)
    put(module, NETWORK, INITIAL_P)
    optimiser = torch.optim.Adam(module.parameters())
    theirs = UnitRevival(module, [optimiser])
    put(module, NETWORK, silenced())
    for parameter in module.parameters():
        ones = torch.ones_like(parameter)
        optimiser.state[parameter] = {"step": torch.tensor(3.0), "exp_avg": ones}
    for states in np.split(ASKED_SD, REMEMBERED_BROADCASTS):
        unchanged = weights(module)
        theirs.revive(torch.as_tensor)
        np.testing.assert_array_equal(weights(module), unchanged)
        theirs.remember(states)
    theirs.revive(torch.as_tensor)
    ones_P = jnp.ones(INITIAL_P.size)
    ours_P, moment_P = revive(NETWORK, jnp.asarray(silenced()), ones_P, revival(), NUMBERS.tanh)
    np.testing.assert_array_equal(weights(module), ours_P)
    moments = [optimiser.state[p]["exp_avg"].numpy().T.ravel() for p in module.parameters()]
    np.testing.assert_array_equal(np.concatenate(moments), moment_P)
    assert 0 < moment_P.sum() < moment_P.size


@pytest.mark.parametrize("rows", [1, 5, 16, 40])
def test_remembered_states_do_not_depend_on_rows_of_weight_0(rows: int) -> None:
    states_BD, nothing = ASKED_SD[:rows], np.full((2 * rows, D), 7, dtype=np.float32)
    spread, weights_B = nothing.copy(), np.tile([0, 1], rows)
    spread[1::2] = states_BD
    fresh = new_revival(NETWORK, jnp.asarray(INITIAL_P))
    one = remember_asked(fresh, jnp.asarray(states_BD), jnp.ones(rows))
    other = remember_asked(fresh, jnp.asarray(spread), jnp.asarray(weights_B, dtype=jnp.float32))
    np.testing.assert_array_equal(one.asked, other.asked)
    expected = states_BD[np.arange(STATES_OF_EACH) * rows // STATES_OF_EACH]
    np.testing.assert_array_equal(one.asked[-STATES_OF_EACH:], expected)
    assert np.isnan(one.asked[:-STATES_OF_EACH]).all()


def silent_learner(**fields: Any) -> Learner:
    learner = new_learner(NETWORK, jnp.asarray(INITIAL_P), revives=True)
    return learner._replace(parameters=jnp.asarray(silenced()), **fields)


def is_awake(learner: Learner) -> bool:
    return bool((answers(learner.parameters)[0][:, FIRST] != 0).any())


def test_only_the_first_improvement_since_self_learning_revives() -> None:
    for improved in (False, True):
        learner = silent_learner(revival=revival(), improved=jnp.bool_(improved))
        assert is_awake(_improve(NETWORK, learner, NUMBERS, *EXCHANGE)) is not improved


def test_units_are_revived_only_after_enough_broadcasts() -> None:
    learner = silent_learner()
    for _ in range(REMEMBERED_BROADCASTS - 1):
        learner = _improve(NETWORK, learner, NUMBERS, *EXCHANGE)
        learner = learner._replace(improved=jnp.bool_(False))
        assert not is_awake(learner)
    assert is_awake(_improve(NETWORK, learner, NUMBERS, *EXCHANGE))


def test_an_improvement_without_rows_changes_nothing() -> None:
    before = silent_learner(revival=revival())
    after = _improve(NETWORK, before, NUMBERS, *EXCHANGE[:3], np.zeros(B))
    jax.tree.map(np.testing.assert_array_equal, after, before)


def test_padding_changes_nothing_and_stays_zero() -> None:
    """The padded network is wider and deeper, with a head at each depth."""
    population = padded([NETWORK, Network(D, (9, 9, 9), A, "tanh")])
    held_P = embed(silenced(), NETWORK, population)
    knows = revival()._replace(initial=jnp.asarray(embed(INITIAL_P, NETWORK, population)))
    # A moment that is 1 for the network's own weights and 0 for padding.
    ones_P = np.ones(INITIAL_P.size, dtype=np.float32)
    held_ones_P = jnp.asarray(embed(ones_P, NETWORK, population))
    held = revive(population, jnp.asarray(held_P), held_ones_P, knows, NUMBERS.tanh)
    alone = revive(NETWORK, jnp.asarray(silenced()), jnp.asarray(ones_P), revival(), NUMBERS.tanh)
    for mine, own in zip(held, alone, strict=True):
        np.testing.assert_array_equal(mine, embed(np.asarray(own), NETWORK, population))


def test_a_checkpoint_holds_the_remembered_states(tmp_path: Path) -> None:
    def agent(seed: int, *, revives: bool = True) -> DqnAgent:
        config = DqnConfig(hidden=(16,), improvement_steps=1, improvement_revives_units=revives)
        env = make_environment("CartPole-v1")
        return DqnAgent(config, env, None, discount=0.9, budget_env_steps=100, seed=seed)

    original, restored = agent(1), agent(2)
    original.improve(*EXCHANGE[:3])
    original.save(tmp_path)
    restored.restore(tmp_path)
    mine, other = restored._learner.revival, original._learner.revival
    assert mine is not None
    jax.tree.map(np.testing.assert_array_equal, mine, other)
    assert np.isfinite(mine.asked[-STATES_OF_EACH:]).all()
    without = tmp_path / "without"
    without.mkdir()
    agent(1, revives=False).save(without)
    with pytest.raises(AgentRefused, match="made with other settings of the agent"):
        original.restore(without)


def test_the_share_of_silent_units_counts_relu_units_only() -> None:
    vector = silenced()
    count = sum(int((layer == 0).all(axis=0).sum()) for layer in answers(vector))
    expected = pytest.approx(count / 11)  # 6 and 5 units
    assert count >= 5
    assert float(NETWORK.silent_units(vector, ASKED_SD)) == expected
    wide = padded([NETWORK, Network(D, (8, 7, 6), A, "tanh")])
    held = jnp.asarray(embed(vector, NETWORK, wide))  # padding is not counted
    assert float(wide.silent_units(held, ASKED_SD, jnp.bool_(False))) == expected
    assert np.isnan(wide.silent_units(held, ASKED_SD, jnp.bool_(True)))
    tanh = Network(D, (6, 5), A, "tanh")
    assert np.isnan(tanh.silent_units(vector, ASKED_SD))

"""The grid: the order of agents, checkpoints, and lanes that end before others."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedhql.agents.dqn import revival
from fedhql.agents.dqn.config import SILENT_UNITS, DqnConfig
from fedhql.agents.dqn.draws import initial_parameters
from fedhql.agents.dqn.network import Network
from fedhql.compiled.grid import Grid
from fedhql.compiled.round_arrays import ArmNumbers
from fedhql.engines.evaluation import evaluate
from fedhql.environments.lanes import TwinLanes
from fedhql.environments.twin_batch import TwinBatch
from fedhql.federation import InProcessCohort
from tests.agents.dqn.corridor import CORRIDOR

COMMON: dict[str, Any] = {
    "train_freq": 1,
    "learning_starts": 5,
    "batch_size": 4,
    "buffer_size": 25,
    "improvement_steps": 2,
    "learning_rate": 0.01,
    "improvement_learning_rate": 0.03,
    "exploration_final_eps": 0.3,
    "improvement_revives_units": True,
}
# With padding these two are one population.
PAIR = [
    DqnConfig(hidden=(6,), **COMMON),
    DqnConfig(hidden=(3, 4), activation="tanh", **COMMON),
]
# The agent between them trains at other times and so needs its own population.
THREE = [PAIR[0], DqnConfig(hidden=(4,), **(COMMON | {"train_freq": 2})), PAIR[1]]
SEEDS_LN = np.arange(9, dtype=np.uint32).reshape(3, 3)
SEEDS_LNE = np.arange(18, dtype=np.uint32).reshape(3, 3, 2)
# The third lane is independent.
ARMS = ArmNumbers(
    rule_numbers={"exploration": jnp.array([1.0, 1.0])},
    learning_rate=jnp.array([0.5, 0.5]),
    pessimism=jnp.zeros(2),
    auditions=jnp.zeros(2, dtype=int),
    random_actions=jnp.zeros(2),
    random_actions_env_steps=jnp.zeros(2, dtype=int),
    horizon_steps=jnp.array([4, 4]),
    query_batch=jnp.array([3, 3]),
    replay_batch=jnp.array([0, 0]),
    replay_capacity=jnp.array([10, 10]),
    rule=jnp.zeros(2, dtype=int),
    carry_over=jnp.zeros(2, dtype=bool),
    public=jnp.zeros(2, dtype=bool),
    attack=jnp.zeros(2, dtype=int),
    attackers=jnp.zeros(2, dtype=int),
)
PLENTY = np.array([1_000, 1_000])


def grid(
    configs: Sequence[DqnConfig] = PAIR,
    *,
    seeds_LN: Any = SEEDS_LN,
    pad: bool = True,
    backwards: bool = False,
    arms: ArmNumbers = ARMS,
) -> Grid:
    return Grid(
        configs,
        lambda: TwinLanes(CORRIDOR),
        seeds_LN[:, : len(configs)],
        arms,
        rules=("mean-std",),
        discount=0.9,
        phase_env_steps=30,
        budget_env_steps=100,
        pad=pad,
        backwards=backwards,
    )


def parameters(of: Grid, lane: int) -> list[Any]:
    agents = sum(len(each.agents) for each in of.cohort.members)
    return [of.policy(lane, agent)[1] for agent in range(agents)]


def one_round(of: Grid, number: int) -> tuple[Any, ...]:
    """Run one round. Return every agent's parameters, the evaluation and the outcome."""
    of.self_learn(np.full(3, of.env_steps + 22 + number))
    seeds_FB = np.arange(6, dtype=np.uint32).reshape(2, 3) + 100 * number
    outcome = of.federate(seeds_FB, PLENTY, 0)
    vectors = [parameters(of, lane) for lane in range(3)]
    of_agents, _ = of.evaluate(SEEDS_LNE[:, : len(vectors[0])], 50)
    return vectors, of_agents, outcome


@pytest.fixture(autouse=True, scope="module")
def _remember_one_broadcast() -> Iterator[None]:
    """Remember so few states that some units are silent at all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(revival, "REMEMBERED_BROADCASTS", 1)
        yield


@pytest.fixture(scope="module")
def undisturbed() -> list[tuple[Any, ...]]:
    whole = grid()
    return [one_round(whole, number) for number in range(3)]


def test_every_agent_follows_from_its_seed_and_config() -> None:
    """Answers are in the order of agents, even if populations have another order."""
    whole = grid(THREE)
    assert [each.agents for each in whole.cohort.members] == [(0, 2), (1,)]
    states_LBD = np.random.default_rng(0).normal(size=(3, 5, 2)).astype(np.float32)
    ask = jax.jit(whole.cohort.q_values)
    q_LNBA = np.asarray(ask(whole.learners, whole._numbers, states_LBD))
    for lane in range(3):
        for agent, config in enumerate(THREE):
            network, vector = whole.policy(lane, agent)
            assert (network.hidden, network.activation) == (config.hidden, config.activation)
            expected = initial_parameters(network, int(SEEDS_LN[lane, agent]))
            np.testing.assert_array_equal(vector, expected)
            own = network.q_values(vector, states_LBD[lane])
            np.testing.assert_allclose(q_LNBA[lane, agent], own, atol=1e-6)


def test_silent_units_are_revived_in_federated_lanes(undisturbed: Any) -> None:
    """The other tests of this module therefore cover revival too."""
    without = grid([replace(config, improvement_revives_units=False) for config in PAIR])
    left = [one_round(without, number) for number in range(3)][-1][0]
    revived = undisturbed[-1][0]
    differ = [not np.allclose(revived[lane][0], left[lane][0], atol=0.1) for lane in range(3)]
    assert differ == [True, True, False]


def test_every_agent_is_evaluated_with_its_own_network(undisturbed: Any) -> None:
    """Evaluating each network outside the grid gives the same returns."""
    vectors, of_grid, _ = undisturbed[0]
    networks = [Network(2, c.hidden, 2, c.activation) for c in PAIR]
    for lane in range(3):
        agents = [_Policy(net, vector) for net, vector in zip(networks, vectors[lane], strict=True)]
        batch, seeds_NE = TwinBatch(CORRIDOR, 4), SEEDS_LNE[lane, :2]
        act_each = InProcessCohort(agents, 2).act_each
        played = evaluate(act_each, batch, seeds_NE, discount=0.9)
        for of_lanes, figure in zip(of_grid, played, strict=True):
            np.testing.assert_allclose(of_lanes[lane], figure, atol=1e-5)
    assert len(set(of_grid[2].ravel())) > 1  # lengths


class _Policy:
    def __init__(self, network: Network, vector: Any) -> None:
        self.q_values = lambda states: network.q_values(vector, states)

    def self_learn(self, env_steps: int) -> None: ...

    def improve(self, states: Any, actions: Any, targets: Any) -> None: ...


@pytest.mark.slow  # many programs
@pytest.mark.parametrize("configs", [PAIR, THREE])
def test_padded_agents_learn_the_same_as_separate_ones(configs: Sequence[DqnConfig]) -> None:
    """Agents are padded on a GPU and separate on a CPU."""
    padded, separate = grid(configs, pad=True), grid(configs, pad=False)
    assert len(separate.cohort.members) == len(configs)
    assert len(padded.cohort.members) < len(configs)
    for number in range(3):
        theirs, mine = one_round(padded, number), one_round(separate, number)
        close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)  # noqa: E731
        jax.tree.map(close, mine, theirs)


def test_the_order_of_populations_does_not_matter() -> None:
    forwards, backwards = (grid(pad=False, backwards=choice) for choice in (False, True))
    jax.tree.map(np.testing.assert_array_equal, one_round(forwards, 0), one_round(backwards, 0))


def test_a_restored_grid_continues_bit_for_bit(undisturbed: Any, tmp_path: Path) -> None:
    """The replay memory is full or not; the restoring grid had other agents."""
    whole = grid()
    for number in (0, 1):
        one_round(whole, number)
        (tmp_path / str(number)).mkdir()
        whole.save(tmp_path / str(number))
    for number in (0, 1):
        restored = grid(seeds_LN=SEEDS_LN + 50)
        restored.restore(tmp_path / str(number))
        assert restored.env_steps == [22, 45][number]
        for later in range(number + 1, 3):
            after = one_round(restored, later)
            jax.tree.map(np.testing.assert_array_equal, after, undisturbed[later])
        assert restored.env_steps == 69
        assert restored.diagnostics()["train/n_updates"][2, 1] == 69 - 5


def test_a_restored_grid_knows_what_agents_have_earned(tmp_path: Path) -> None:
    arms = ARMS._replace(auditions=jnp.array([0, 1]))
    whole, restored = grid(arms=arms), grid(arms=arms)
    one_round(whole, 0)
    whole.save(tmp_path)
    restored.restore(tmp_path)
    earned_FN = np.asarray(whole._earnings_FN)
    assert (earned_FN[0] == 0).all()
    assert (earned_FN[1] != 0).any()
    np.testing.assert_array_equal(restored._earnings_FN, earned_FN)


def test_lanes_that_end_earlier_do_not_change_afterwards() -> None:
    ends = np.array([15, 29, 22])
    uneven = grid()
    uneven.self_learn(ends)
    assert uneven.env_steps == 29
    for lane, end in enumerate(ends):
        even = grid()
        even.self_learn(np.full(3, end))
        for mine, other in zip(parameters(uneven, lane), parameters(even, lane), strict=True):
            np.testing.assert_array_equal(mine, other)
    # A lane that continues is not affected by those that have ended.
    uneven.self_learn(np.array([29, 40, 29]))
    even = grid()
    even.self_learn(np.full(3, 29))
    even.self_learn(np.full(3, 40))
    for mine, other in zip(parameters(uneven, 1), parameters(even, 1), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_silent_units_of_a_lane_are_measured_when_it_ends() -> None:
    """Steps of the other lanes come afterwards, and its memory holds what they would have been."""
    uneven = grid()
    uneven.self_learn(np.array([15, 29, 22]))
    before = uneven.diagnostics()[SILENT_UNITS]
    uneven._experiences = [each._replace(replay=each.replay + 100) for each in uneven._experiences]
    differ = ~np.isclose(uneven.diagnostics()[SILENT_UNITS], before, equal_nan=True)
    assert differ.any(axis=1).tolist() == [False, True, False]


def test_agents_and_consensus_play_the_same_episodes_together() -> None:
    """On a GPU they play in one loop, on a CPU one population after the other."""
    whole = grid(THREE)
    whole.self_learn(np.full(3, 22))
    seeds_FE = np.arange(100, 104, dtype=np.uint32).reshape(2, 2)
    assert not whole.plays_together
    in_turn = whole.evaluate(SEEDS_LNE, 50, seeds_FE)
    whole.plays_together = True
    together = whole.evaluate(SEEDS_LNE, 50, seeds_FE)
    for mine, other in zip(in_turn, together, strict=True):
        for figure, expected in zip(mine, other, strict=True):
            np.testing.assert_array_equal(figure, expected)
    (returns_LNE, *_), (returns_FE, *_) = together
    assert len(np.unique(returns_LNE)) > 1  # so a wrong order of agents would show
    assert returns_FE.shape == (2, 2)


def test_programs_compiled_ahead_are_those_of_a_round(caplog: pytest.LogCaptureFixture) -> None:
    """Sizes are those of no other test, so nothing is compiled yet."""
    arms = ARMS._replace(random_actions=jnp.array([0.0, 0.5]))
    whole = grid([DqnConfig(hidden=(5,), **(COMMON | {"train_freq": 3}))], arms=arms)
    whole.plays_together = True
    whole.compile_ahead(episodes=7, query_batch=5, step_limit=50)
    seeds_LNE = np.arange(21, dtype=np.uint32).reshape(3, 1, 7)
    seeds_FE = np.arange(14, dtype=np.uint32).reshape(2, 7)
    with jax.log_compiles():
        whole.self_learn(np.full(3, 22))
        whole.federate(np.arange(10, dtype=np.uint32).reshape(2, 5), PLENTY, 0)
        whole.evaluate(seeds_LNE, 50, seeds_FE)
        compiled_in_the_round = re.findall(r"XLA compilation of jit\((\w+)\)", caplog.text)
        caplog.clear()
        other = grid([DqnConfig(hidden=(7,), **(COMMON | {"train_freq": 5}))])
        other.plays_together = True
        other.self_learn(np.full(3, 22))
        other.federate(np.arange(14, dtype=np.uint32).reshape(2, 7), PLENTY, 0)
        other.evaluate(seeds_LNE[:, :, :6], 50, seeds_FE[:, :6])
        without = re.findall(r"XLA compilation of jit\((\w+)\)", caplog.text)
    programs = {"self_learn", "chunk_draws", "federate_first", "play_together", "begin_episodes"}
    assert not programs & {*compiled_in_the_round}
    assert programs < {*without}


def test_a_diverged_agent_still_plays(undisturbed: Any) -> None:
    """It always takes the first action, away from the goal; the others are not affected."""
    whole = grid()
    (fine, *_), _ = whole.evaluate(SEEDS_LNE[:, :2], 50)
    (population,) = whole.learners
    nan = population.parameters.at[3].set(np.nan)  # the second agent of the second lane
    whole.learners = (population._replace(parameters=nan),)
    (returns, _, lengths, start_values), _ = whole.evaluate(SEEDS_LNE[:, :2], 50)
    assert np.isfinite(returns).all()
    assert (lengths[1, 1] == 9).all()
    assert np.isnan(start_values[1, 1]).all()
    others = np.arange(6).reshape(3, 2) != 3
    np.testing.assert_array_equal(returns[others], fine[others])

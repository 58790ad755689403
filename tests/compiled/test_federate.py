"""A compiled round of many lanes equals the message engine's round in each lane."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedhql.agents.dqn.agent import DqnAgent
from fedhql.agents.dqn.config import DqnConfig
from fedhql.compiled import grid as grid_module
from fedhql.compiled import server as server_module
from fedhql.compiled.grid import Grid
from fedhql.compiled.round_arrays import ArmNumbers, Outcome
from fedhql.engines.attacked_cohort import under_attack
from fedhql.environments.lanes import TwinLanes, begin_episodes
from fedhql.environments.twin_batch import TwinBatch
from fedhql.errors import NoUsableAnswers
from fedhql.federation import (
    RULES,
    Budget,
    FederationServer,
    InProcessCohort,
    RoundFigures,
    rule_named,
)
from fedhql.federation.attacks import ATTACKS, attack_number
from fedhql.settings.sections import AttackSettings
from tests.agents.dqn.corridor import CORRIDOR, LIMIT, corridor

DISCOUNT, PLENTY = 0.9, 10**6
# They share one shape and so their programs, but each learns at another rate.
CONFIGS = [
    DqnConfig(hidden=(8,), improvement_steps=2, improvement_learning_rate=rate)
    for rate in (0.01, 0.03, 0.1)
]
# An agent that is the median has an error of 0 up to rounding; Adam would make that a full step.
BY_SGD = [
    replace(c, improvement_optimiser="sgd", improvement_learning_rate=rate)
    for c, rate in zip(CONFIGS, (0.1, 0.2, 0.5), strict=True)
]
# The horizon exceeds the episode limit: some episodes are truncated, others reach the goal before.
Arm = dict[str, float]
ARM: Arm = {
    "exploration": 1.0,
    "bound": 1.0,
    "confidence": 1.0,
    "trim": 1,
    "learning_rate": 0.5,
    "pessimism": 0.0,
    "auditions": 0,
    "random_actions": 0.0,
    "random_actions_env_steps": 0,
    "horizon_steps": 12,
    "query_batch": 4,
    "replay_batch": 0,
    "replay_capacity": 10,
    "rule": 0,
    "carry_over": False,
    "public": False,
    "attack": 0,
    "attackers": 0,
}
ARMS: list[Arm] = [
    ARM,
    ARM | {"exploration": 30.0},
    ARM | {"learning_rate": 0.1, "horizon_steps": 5, "query_batch": 2},
]
# The last lane is independent. In the first two lanes some episodes end at the goal.
AGENT_SEEDS_LN = np.arange(204, 216, dtype=np.uint32).reshape(4, 3)
SERVER_SEEDS_FB = np.arange(100, 112, dtype=np.uint32).reshape(3, 4)
RULE_NUMBERS = ("exploration", "bound", "confidence", "trim")
LANES = pytest.mark.parametrize("lane", range(3))
close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)


class Compiled:
    """One round of all lanes in the compiled engine."""

    def __init__(
        self,
        arms: Sequence[Arm] = ARMS,
        *,
        order: Sequence[int] = (0, 1, 2),
        affordable: Sequence[int] = (PLENTY,) * 3,
        silent: Sequence[tuple[int, int]] = (),
        rule: str = "mean-std",
        rules: tuple[str, ...] = (),
        all_actions: bool = False,
        configs: Sequence[DqnConfig] = CONFIGS,
        earnings: Sequence[float] = (),
    ) -> None:
        seeds_LN = AGENT_SEEDS_LN[[*order, 3]]
        self._grid = Grid(
            configs,
            lambda: TwinLanes(CORRIDOR),
            seeds_LN,
            ArmNumbers(
                {key: jnp.array([arm[key] for arm in arms]) for key in RULE_NUMBERS},
                *(jnp.array([arm[name] for arm in arms]) for name in ArmNumbers._fields[1:]),
            ),
            rules=rules or (rule,),
            discount=DISCOUNT,
            phase_env_steps=10,
            budget_env_steps=10,
            pad=False,
            all_actions=all_actions,
        )
        for lane, agent in silent:  # without padding each agent is its own population
            learner = self._grid.learners[agent]
            nan = learner.parameters.at[lane].set(np.nan)
            self._grid._put(agent, learner._replace(parameters=nan))
        if earnings:
            self._grid._earnings_FN = jnp.tile(jnp.array(earnings), (3, 1))
        self.before = [self.parameters(lane) for lane in range(4)]
        seeds_FB = SERVER_SEEDS_FB[list(order)]
        self.outcome: Outcome = self._grid.federate(seeds_FB, np.array(affordable), 0)

    def parameters(self, lane: int) -> Any:
        return np.stack([self._grid.policy(lane, n)[1] for n in range(3)])

    def assert_lane_is(self, lane: int, other: "Compiled", other_lane: int) -> None:
        """Check that a lane equals a lane of another run, bit for bit."""
        np.testing.assert_array_equal(self.parameters(lane), other.parameters(other_lane))
        for mine, theirs in zip(self.outcome, other.outcome, strict=True):
            np.testing.assert_array_equal(mine[lane], theirs[other_lane])


class Messages:
    """One round of one lane in the message engine."""

    def __init__(
        self,
        lane: int,
        arm: Arm,
        *,
        affordable: int = PLENTY,
        silent: Sequence[int] = (),
        rule: str = "mean-std",
        all_actions: bool = False,
        configs: Sequence[DqnConfig] = CONFIGS,
        earnings: Sequence[float] = (),
    ) -> None:
        self._agents = [
            DqnAgent(c, corridor(), CORRIDOR, discount=0.9, budget_env_steps=10, seed=int(seed))
            for c, seed in zip(configs, AGENT_SEEDS_LN[lane], strict=True)
        ]
        for agent in (self._agents[n] for n in silent):
            nan = jnp.full_like(agent._learner.parameters, np.nan)
            agent._learner = agent._learner._replace(parameters=nan)
        batch = int(arm["query_batch"])
        name = list(ATTACKS)[int(arm["attack"])] if arm["attackers"] else None
        lies = AttackSettings(name=name, attackers=int(arm["attackers"]))
        server = FederationServer(
            under_attack(InProcessCohort(self._agents, 2), lies),
            TwinBatch(CORRIDOR, 4),
            rule_named(rule, arm),
            horizon_steps=int(arm["horizon_steps"]),
            learning_rate=arm["learning_rate"],
            pessimism=arm["pessimism"],
            auditions=int(arm["auditions"]),
            random_actions=arm["random_actions"],
            random_actions_env_steps=int(arm["random_actions_env_steps"]),
            discount=DISCOUNT,
            all_actions=all_actions,
        )
        server.earnings = {f"agent{n}": earned for n, earned in enumerate(earnings, start=1)}
        # Spend so much of the budget that `affordable` remains.
        budget = Budget(PLENTY, 3, server_env_steps=3 * PLENTY - affordable)
        seeds = SERVER_SEEDS_FB[lane, :batch].tolist()
        self.figures: RoundFigures = server.federate(budget, seeds)[1]
        self.refused = [server.refused[f"agent{n}"] for n in (1, 2, 3)]

    def parameters(self) -> Any:
        return np.stack([agent._parameters() for agent in self._agents])

    def assert_same(self, compiled: Compiled, lane: int) -> None:
        steps, sums, refused, unanswered = (np.asarray(x)[lane] for x in compiled.outcome)
        mine = self.figures
        assert steps == mine.server_env_steps
        close(sums / max(int(steps), 1), (mine.spread, mine.td_error, mine.loss))
        assert refused.tolist() == self.refused
        assert not unanswered
        close(compiled.parameters(lane), self.parameters())


@pytest.fixture(scope="module")
def plain() -> Compiled:
    return Compiled()


@LANES
def test_a_compiled_round_equals_the_message_engines(lane: int, plain: Compiled) -> None:
    """An environment that has ended is not queried, counted or learned from."""
    Messages(lane, ARMS[lane]).assert_same(plain, lane)


def test_the_compared_round_ends_episodes_and_changes_every_lane(plain: Compiled) -> None:
    steps = np.asarray(plain.outcome.server_env_steps)
    # Episodes end at different times: some at the goal, others at the limit.
    assert all(4 * LIMIT > of_lane > 2 * LIMIT for of_lane in steps[:2])
    assert (np.abs(np.diff(np.asarray(plain.outcome.sums), axis=0)) > 1e-3).any(axis=1).all()
    assert all((plain.parameters(lane) != plain.before[lane]).any() for lane in range(3))


def test_a_round_does_not_change_an_independent_lane(plain: Compiled) -> None:
    np.testing.assert_array_equal(plain.parameters(3), plain.before[3])


@pytest.mark.parametrize("order", [(2, 1, 0), (1, 0, 2)])
def test_the_order_of_lanes_does_not_matter(order: Sequence[int], plain: Compiled) -> None:
    turned = Compiled([ARMS[lane] for lane in order], order=order)
    for lane, was in enumerate(order):
        turned.assert_lane_is(lane, plain, was)


def test_each_number_of_an_arm_changes_its_own_lane_only(plain: Compiled) -> None:
    """Each change is made in lane 0 and must show there only."""
    changes: list[Arm] = [
        {"exploration": 30.0},
        {"learning_rate": 0.1},
        {"pessimism": 0.5},
        {"horizon_steps": 3},
        {"query_batch": 3},
        {"auditions": 1},
        {"random_actions": 0.5},
        {"random_actions": 0.5, "query_batch": 3},  # fewer than the other lanes
    ]
    for change in changes:
        arm = ARM | change
        # The second lane keeps the longest horizon, so the program stays the same.
        changed = Compiled([arm, *ARMS[1:]])
        assert (changed.parameters(0) != plain.parameters(0)).any(), change
        Messages(0, arm).assert_same(changed, 0)
        for lane in (1, 2):
            changed.assert_lane_is(lane, plain, lane)


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("rule", ["mean-std", "bellman-weighted"])
def test_both_engines_hear_the_same_agents(rule: str, silent: bool) -> None:
    """At first agents 1 and 3 are heard; the agent that is silent had earned most."""
    arms = [arm | {"auditions": 1} for arm in ARMS]
    of_round: dict[str, Any] = {"rule": rule, "configs": BY_SGD, "earnings": [0.002, 0.001, 0.003]}
    found = Compiled(arms, silent=[(0, 2)] if silent else (), **of_round)
    heard_all = Compiled(ARMS, silent=[(0, 2)] if silent else (), rule=rule, configs=BY_SGD)
    assert (found.parameters(0)[:2] != heard_all.parameters(0)[:2]).any()
    for lane in range(3):
        one = Messages(lane, arms[lane], silent=[2] if silent and lane == 0 else (), **of_round)
        one.assert_same(found, lane)


def test_rows_that_do_not_run_have_no_effect(
    plain: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such rows may hold NaN, as agents are not asked about them."""

    def begin_badly(lanes: Any, seeds: Any) -> Any:
        episodes = begin_episodes(lanes, seeds)
        if len(seeds) < 12:
            return episodes  # the episodes of agents
        # The arm of the third lane uses 2 of its 4 rows.
        return episodes._replace(states=episodes.states.at[10:].set(np.nan))

    monkeypatch.setattr(grid_module, "begin_episodes", begin_badly)
    poisoned = Compiled()
    for lane in range(3):
        poisoned.assert_lane_is(lane, plain, lane)


@pytest.mark.parametrize("affordable", [(7, 9, 1), (4, 0, 2)])
def test_a_round_takes_no_step_that_the_budget_cannot_pay(affordable: Sequence[int]) -> None:
    limited = Compiled(affordable=affordable)
    for lane, most in enumerate(affordable):
        Messages(lane, ARMS[lane], affordable=most).assert_same(limited, lane)
    spent = np.asarray(limited.outcome.server_env_steps)
    assert (spent <= affordable).all()
    assert spent.tolist() == ([4, 8, 0] if affordable == (7, 9, 1) else [4, 0, 2])
    for lane in np.flatnonzero(spent == 0).tolist():
        np.testing.assert_array_equal(limited.parameters(lane), limited.before[lane])


def test_an_agent_that_answers_nan_is_left_out_and_counted(plain: Compiled) -> None:
    partly = Compiled(silent=[(0, 1)])
    Messages(0, ARMS[0], silent=[1]).assert_same(partly, 0)
    refused = np.asarray(partly.outcome.refused)
    assert refused[0, 1] > 1
    assert refused.sum() == refused[0, 1]
    for lane in (1, 2):
        partly.assert_lane_is(lane, plain, lane)


def test_a_lane_without_a_usable_answer_reports_it(plain: Compiled) -> None:
    silent = Compiled(silent=[(1, 0), (1, 1), (1, 2)])
    assert silent.outcome.unanswered.tolist() == [False, True, False]
    with pytest.raises(NoUsableAnswers):
        Messages(1, ARMS[1], silent=[0, 1, 2])
    for lane in (0, 2):
        silent.assert_lane_is(lane, plain, lane)


@pytest.mark.parametrize("all_actions", [False, True], ids=["chosen", "all actions"])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_and_broadcast_equals_the_message_engines(rule: str, all_actions: bool) -> None:
    """Numbers differ between lanes, and one lane has an agent that answers NaN."""
    arms: list[Arm] = [
        ARM,
        ARM | {"exploration": 30.0, "bound": 2.0, "confidence": 400.0, "trim": 0.4},
        ARM | {"learning_rate": 0.1, "horizon_steps": 5, "query_batch": 2, "bound": 3.0},
    ]
    compiled = Compiled(arms, rule=rule, all_actions=all_actions, silent=[(2, 0)], configs=BY_SGD)
    for lane, arm in enumerate(arms):
        silent = [0] if lane == 2 else []
        messages = Messages(
            lane, arm, rule=rule, all_actions=all_actions, silent=silent, configs=BY_SGD
        )
        messages.assert_same(compiled, lane)
        assert (compiled.parameters(lane) != compiled.before[lane]).any()
    assert np.isfinite(np.asarray(compiled.outcome.sums)).all()


@pytest.mark.parametrize(
    "rules", [("mean-std", "median-mad", "trimmed"), ("bellman-weighted", "bernstein", "mean-std")]
)
def test_lanes_may_have_different_rules(rules: tuple[str, ...]) -> None:
    arms = [ARM | {"rule": number} for number in range(3)]
    compiled = Compiled(arms, rules=rules, silent=[(1, 2)], configs=BY_SGD)
    for lane, rule in enumerate(rules):
        silent = [2] if lane == 1 else []
        messages = Messages(lane, arms[lane], rule=rule, silent=silent, configs=BY_SGD)
        messages.assert_same(compiled, lane)


def test_attackers_ignore_an_agent_that_answers_nan() -> None:
    """They use only the usable answers of honest agents."""
    arms = [
        arm | {"attack": attack_number(name), "attackers": 1}
        for arm, name in zip(ARMS, ("collude", "stealthy", "collude"), strict=True)
    ]
    silent = [(lane, 0) for lane in range(3)]
    compiled, honest = Compiled(arms, silent=silent), Compiled(silent=silent)
    for lane, arm in enumerate(arms):
        Messages(lane, arm, silent=[0]).assert_same(compiled, lane)
        assert (compiled.parameters(lane)[1] != honest.parameters(lane)[1]).any()


def test_a_program_without_attackers_does_not_trace_attacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("traced")

    monkeypatch.setattr(server_module, "attacked", never)
    short = ARM | {"horizon_steps": 2}  # no other test has it, so the program is compiled here
    Compiled([short] * 3)
    with pytest.raises(AssertionError, match="traced"):
        Compiled([short, short, short | {"attackers": 1}])


def test_every_rule_and_broadcast_gives_another_result() -> None:
    rounds = [
        Messages(0, ARMS[1], rule=rule, all_actions=all_actions).parameters()
        for rule in RULES
        for all_actions in (False, True)
    ]
    for number, one in enumerate(rounds):
        assert all((one != other).any() for other in rounds[:number])


@pytest.mark.parametrize("rule", ["median-mad", "hampel", "trimmed", "bellman-weighted"])
def test_a_diverged_agent_does_not_spoil_the_honest_ones(rule: str) -> None:
    """Its answers are finite, but their squares overflow float32."""
    grid = Compiled(rule=rule, all_actions=True, affordable=(0, 0, 0))._grid
    learner = grid.learners[1]
    huge = learner.parameters.at[:].set(1e15)  # both layers multiply by it
    grid._put(1, learner._replace(parameters=huge))
    outcome = grid.federate(SERVER_SEEDS_FB, np.full(3, PLENTY), 0)
    assert not np.isnan(np.asarray(outcome.sums)).any()
    assert np.isfinite(np.asarray(outcome.sums)[:, :2]).all()
    for lane in range(3):
        for honest in (0, 2):
            assert np.isfinite(grid.policy(lane, honest)[1]).all()


def test_the_bernstein_rule_uses_each_lanes_numbers() -> None:
    arms = [ARM, ARM | {"confidence": 400.0, "bound": 2.0}, ARM | {"bound": 3.0}]
    silent = [(2, 0)]
    compiled = Compiled(arms, rule="bernstein", silent=silent)
    for lane, arm in enumerate(arms):
        missing = [agent for of_lane, agent in silent if of_lane == lane]
        Messages(lane, arm, rule="bernstein", silent=missing).assert_same(compiled, lane)
    other = Compiled([arms[0], ARM, arms[2]], rule="bernstein", silent=silent)
    assert (other.parameters(1) != compiled.parameters(1)).any()
    jax.tree.map(np.testing.assert_array_equal, other.parameters(0), compiled.parameters(0))

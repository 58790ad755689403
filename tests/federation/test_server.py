"""Algorithm 1.a step by step, with scripted environments and agents."""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fedhql.errors import NoUsableAnswers
from fedhql.federation import (
    Budget,
    FederationServer,
    InProcessCohort,
    RoundProgress,
    Rule,
    bernstein,
    mean_std,
    median_mad,
    rule_named,
    trimmed,
)
from fedhql.federation.replay import replay_draws
from fedhql.federation.step import action_draws, explore, random_probability

LEARNING_RATE, DISCOUNT = 0.5, 0.9


class Counting:
    """B environments with scripted ends: the state counts up from the seed, reward = action."""

    def __init__(self, terminates: dict[int, int], truncates: dict[int, int] | None = None) -> None:
        """Map an environment to the step (from 1) at which it terminates or truncates."""
        self.terminates, self.truncates = terminates, truncates or {}

    def reset(self, seeds: Sequence[int]) -> Any:
        self.running = np.arange(len(seeds))
        self.now = np.array(seeds, dtype=np.float32)[:, None]
        self.step_number = 0
        return self.now

    def go_on(self, seeds: Sequence[int]) -> Any:
        return self.reset(seeds) if not hasattr(self, "now") else self.now

    def states(self) -> Any:
        return self.now

    def step(self, actions: Any) -> Any:
        self.step_number += 1
        self.now = self.now + 1
        terminated = np.array(
            [self.terminates.get(e) == self.step_number for e in self.running.tolist()]
        )
        truncated = np.array(
            [self.truncates.get(e) == self.step_number for e in self.running.tolist()]
        )
        ended = terminated | truncated
        next_states, self.now, self.running = (
            self.now,
            self.now[~ended],
            self.running[~ended],
        )
        return next_states, actions.astype(np.float32), terminated, ended


class Linear:
    """An agent with Q(s, a) = slope[a] · s + offset; it records queries and improvements."""

    def __init__(self, slopes: Sequence[float], offset: float = 0.0) -> None:
        self.slopes, self.offset = np.array(slopes), offset
        self.queries: list[list[float]] = []
        self.improvements: list[tuple[list[float], list[int], list[float]]] = []

    def self_learn(self, env_steps: int) -> None: ...

    def q_values(self, states: Any) -> Any:
        self.queries.append(states.ravel().tolist())
        return states * self.slopes + self.offset

    def improve(self, states: Any, actions: Any, targets: Any) -> None:
        self.improvements.append((states.ravel().tolist(), actions.tolist(), targets.tolist()))


def server(
    agents: Sequence[Any],
    environments: Counting,
    exploration: float = 0.0,
    horizon: int = 16,
    rule: Rule | None = None,
    all_actions: bool = False,
    pessimism: float = 0.0,
    random_actions: float = 0.0,
    random_actions_env_steps: int | None = None,
    auditions: int = 0,
    A: int = 2,
) -> FederationServer:
    return FederationServer(
        InProcessCohort(agents, A),
        environments,
        rule or mean_std(exploration),
        horizon_steps=horizon,
        learning_rate=LEARNING_RATE,
        discount=DISCOUNT,
        all_actions=all_actions,
        pessimism=pessimism,
        random_actions=random_actions,
        random_actions_env_steps=random_actions_env_steps,
        auditions=auditions,
    )


PLENTY = Budget(env_steps_per_agent=10_000, agents=2)


def test_one_step_equals_hand_computed_numbers() -> None:
    agents = [Linear([1, 0]), Linear([3, 1])]  # mean slopes 2 and 0.5
    budget, figures = server(agents, Counting({}), horizon=1).federate(PLENTY, [10, 20])
    # Action 0 is chosen everywhere: reward 0, q̄ = 2 s, next q̄ = 2 (s + 1).
    expected = [s2 + 0.5 * (0.9 * (s2 + 2) - s2) for s2 in (20.0, 40.0)]
    for agent in agents:
        (states, actions, targets), *more = agent.improvements
        assert not more
        assert (states, actions) == ([10, 20], [0, 0])
        np.testing.assert_allclose(targets, expected, rtol=1e-6)
        assert agent.queries == [[10, 20], [11, 21]]
    assert budget.server_env_steps == figures.server_env_steps == 2
    assert figures.spread == pytest.approx(15)  # std over agents of (1, 3)·s: s, mean of 10 and 20
    assert figures.td_error == pytest.approx((abs(0.9 * 22 - 20) + abs(0.9 * 42 - 40)) / 2)
    own = np.array([[10.0, 20.0], [30.0, 60.0]])
    assert figures.loss == pytest.approx(float(((np.array(expected) - own) ** 2).mean()))


def test_a_server_may_take_random_actions() -> None:
    """Environments keep their draws when others end, and the targets are of the actions taken."""
    agents, seeds, ends = [Linear([1, 0]), Linear([3, 1])], [10, 20, 30], {0: 2}
    server(agents, Counting(ends), horizon=4, random_actions=0.5).federate(PLENTY, seeds)
    draws_HB = action_draws(seeds, 4, 3)
    is_random_HB = draws_HB / 2**32 < 0.5
    assert 0 < is_random_HB.sum() < 12
    for number, (states, actions, targets) in enumerate(agents[0].improvements):
        rows = [0, 1, 2] if number < 2 else [1, 2]
        wanted = np.where(is_random_HB, draws_HB % 2, 0)[number, rows]  # 0 is the rule's choice
        assert actions == wanted.tolist()
        for s, action, target in zip(states, actions, targets, strict=True):
            q, terminal = (2 * s, 0.5 * s)[action], (s, number) == (11, 1)
            future = 0 if terminal else 0.9 * 2 * (s + 1)
            assert target == pytest.approx(q + 0.5 * (action + future - q))


@pytest.mark.parametrize("xp", [np, jnp])
def test_random_actions_are_as_frequent_as_they_should_be(xp: Any) -> None:
    """Of 60,000 draws 30 % are random, a third of them each action; within 5 standard errors."""
    draws = xp.asarray(action_draws([3, 4], 60, 1000).ravel())
    chosen = xp.full(60_000, 7)
    explored = explore(chosen, draws, 0.3, 3)
    assert explored.dtype == chosen.dtype
    counts = [int((explored == action).sum()) for action in (0, 1, 2, 7)]
    assert sum(counts) == 60_000
    assert max(abs(count - 6_000) for count in counts[:3]) < 5 * (6_000 * 0.9) ** 0.5
    assert (explore(chosen, draws, 0.0, 3) == 7).all()
    assert (explore(chosen, draws, 1.0, 3) < 3).all()


def test_the_probability_of_random_actions_falls_linearly_to_0() -> None:
    own = np.array([0, 250, 500, 1_000, 3_000])
    falling = random_probability(0.4, 1_000, own)
    np.testing.assert_allclose(falling, [0.4, 0.3, 0.2, 0, 0], rtol=1e-6)
    assert (random_probability(0.4, 0, own) == np.float32(0.4)).all()
    of_lanes = random_probability(np.array([0.4, 0.2]), np.array([0, 800]), np.array([600, 600]))
    np.testing.assert_allclose(of_lanes, [0.4, 0.05], rtol=1e-6)


@pytest.mark.parametrize(("own_env_steps", "probability"), [(0, 1.0), (500, 0.5), (1_000, 0.0)])
def test_a_server_lowers_its_random_actions(own_env_steps: int, probability: float) -> None:
    agents, seeds = [Linear([1, 0]), Linear([3, 1])], [10, 20, 30]
    falling = server(agents, Counting({}), 0, 4, random_actions=1.0, random_actions_env_steps=1_000)
    falling.federate(replace(PLENTY, own_env_steps=own_env_steps), seeds)
    draws_HB = action_draws(seeds, 4, 3)
    wanted_HB = np.where(draws_HB / 2**32 < probability, draws_HB % 2, 0)
    assert [actions for _, actions, _ in agents[0].improvements] == wanted_HB.tolist()


def test_a_liar_that_earns_less_is_not_heard_from_then_on() -> None:
    """It asks for action 0, whose reward is 0. The others take action 1 where they act alone."""
    honest, liar, seeds = [Linear([0, 1]), Linear([0, 3])], Linear([1e6, 0]), [10, 20, 30, 40]
    agents = [*honest, liar]
    auditioning = server(agents, Counting({}), horizon=2, auditions=1)
    auditioning.federate(Budget(10_000, 3), seeds)
    first, second = honest[0].improvements
    assert first[1] == [1, 1, 0, 0]  # the last environment is the server's: it believes the liar
    assert second[1] == [1, 1, 0, 1]
    assert max(first[2]) > 1e6
    # The mean of the two at action 1 is 2 s, of which the liar's lie at action 0 has no part.
    future = [0.9 * 2 * (s + 1) for s in second[0]]
    assert second[2][0] == pytest.approx(2 * 11 + 0.5 * (1 + future[0] - 2 * 11))
    assert second[2][2] == pytest.approx(0 + 0.5 * (0 + future[2] - 0))
    assert liar.improvements == honest[0].improvements
    earned = 0.01 + 0.01 * (1 - 0.01)
    assert auditioning.earnings == pytest.approx({"agent1": earned, "agent2": earned, "agent3": 0})
    # Who joins later has earned as little as anybody: rewards may be negative.
    auditioning.earnings = {"agent1": -1.0, "agent2": -2.0}
    assert auditioning._earnings_of(["agent1", "new"]).tolist() == [-1.0, -2.0]
    # The next round goes on with what they earned.
    auditioning.earnings = {"agent1": earned, "agent2": earned, "agent3": 0.0}
    auditioning.federate(Budget(10_000, 3), seeds)
    assert max(honest[0].improvements[2][2]) < 1_000


class SilentBeforeActing(Linear):
    """It gives no number about the states where it would act, and a lie about the next ones."""

    def q_values(self, states: Any) -> Any:
        values = super().q_values(states)
        return values * np.nan if len(self.queries) % 2 else values + 1e6


@pytest.mark.parametrize("auditions", [0, 1])
def test_who_could_not_act_is_not_heard_about_next_states(auditions: int) -> None:
    agents = [Linear([0, 1]), Linear([0, 3]), SilentBeforeActing([0, 1])]
    some = server(agents, Counting({}), horizon=3, auditions=auditions)
    some.federate(Budget(10_000, 3), [10, 20, 30])
    largest = max(max(targets) for _, _, targets in agents[0].improvements)
    assert (largest < 100) == bool(auditions)


def test_draws_of_actions_are_of_the_round() -> None:
    draws = action_draws([3, 4], 5, 2)
    assert (draws == action_draws([3, 9], 5, 2)).all()
    assert (draws != action_draws([4, 3], 5, 2)).any()
    assert (draws != replay_draws([3, 4], 5, 2)).all()


def test_a_pessimistic_server_takes_the_next_values_less_their_spread() -> None:
    agents = [Linear([1, 0]), Linear([3, 1])]  # mean slopes 2 and 0.5, deviations 1 and 0.5
    server(agents, Counting({}), horizon=1, pessimism=0.25).federate(PLENTY, [10])
    # q̄ = 20 has no margin; the next values are 22 - 0.25 · 11 and 5.5 - 0.25 · 5.5.
    expected = 20 + 0.5 * (0.9 * 19.25 - 20)
    ((_, actions, targets),) = agents[0].improvements
    assert actions == [0]
    assert targets == pytest.approx([expected])
    # With more, the other action has the larger bound: 5.5 - 3.5 · 5.5, not 22 - 3.5 · 11.
    server(agents, Counting({}), horizon=1, pessimism=3.5).federate(PLENTY, [10])
    assert agents[0].improvements[-1][2] == pytest.approx([20 + 0.5 * (0.9 * -13.75 - 20)])


def test_exploration_prefers_disagreement_and_ties_go_to_the_lowest_action() -> None:
    agents = [Linear([1, 0]), Linear([1, 1.8])]  # means 1 and 0.9, deviations 0 and 0.9
    for exploration, action in ((0.0, 0), (1.0, 1)):
        server(agents, Counting({}), exploration, horizon=1).federate(PLENTY, [1])
        assert agents[0].improvements[-1][1] == [action]
    equal = Linear([1, 1])
    server([equal], Counting({}), horizon=1).federate(Budget(1000, 1), [1])
    assert equal.improvements[0][1] == [0]


@pytest.mark.parametrize("rule", [median_mad(1.0), trimmed(1.0, trim=1)])
def test_the_centre_replaces_the_mean_in_score_and_targets(rule: Rule) -> None:
    """It does so in the score, in q̄(s, ā) and in max q̄(s', b); the attacker affects none."""
    liar = Linear([0, 1e9])
    agents = [Linear([2, 1]), liar, Linear([3, 1])]
    _, figures = server(agents, Counting({}), horizon=1, rule=rule).federate(PLENTY, [10])
    states, actions, targets = liar.improvements[0]
    centre = 20.0  # of 0, 20 and 30
    assert (states, actions) == ([10], [0])
    assert targets == [pytest.approx(centre + 0.5 * (0.9 * 22 - centre))]
    assert figures.spread <= 1.4826 * 10
    assert figures.td_error == pytest.approx(abs(0.9 * 22 - centre), rel=1e-4)


def test_all_actions_broadcasts_the_centre_and_fed_td_at_the_chosen_action() -> None:
    agents = [Linear([1, 0]), Linear([3, 1])]
    federation = server(agents, Counting({1: 1}), horizon=1, all_actions=True)
    budget, figures = federation.federate(PLENTY, [10, 20])
    expected = [20 + 0.5 * (0.9 * 22 - 20), 5.0, 40 + 0.5 * (0 - 40), 10.0]
    for agent in agents:
        (states, actions, targets), *more = agent.improvements
        assert not more
        assert (states, actions) == ([10, 10, 20, 20], [0, 1, 0, 1])
        np.testing.assert_allclose(targets, expected, rtol=1e-6)
        assert agent.queries == [[10, 20], [11]]
    assert budget.server_env_steps == figures.server_env_steps == 2  # extra rows cost no env steps
    own = np.array([[10.0, 0, 20, 0], [30, 10, 60, 20]])
    assert figures.loss == pytest.approx(float(((np.array(expected) - own) ** 2).mean()))


class AtParity(Linear):
    """An agent with one pair of values at even states and another at odd ones."""

    def __init__(self, even: Sequence[float], odd: Sequence[float]) -> None:
        super().__init__([0, 0])
        self.even, self.odd = even, odd

    def q_values(self, states: Any) -> Any:
        super().q_values(states)
        return np.where(states % 2, [self.odd], [self.even])


def weight(promised: float, came: float) -> float:
    return 1 / ((abs(came - promised) / promised) ** 2 + 0.1**2)


def test_weights_of_one_step_choose_the_action_of_the_next() -> None:
    # Their mean prefers action 0, whose reward is 0. The second agent's value of it is wrong.
    keeps, breaks = AtParity([9, 8], [2, 10]), AtParity([40, 0], [20, 0])
    seen: list[RoundProgress] = []
    federation = server(
        [keeps, breaks],
        Counting({}),
        horizon=2,
        rule=rule_named("bellman-weighted", {"exploration": 0.0}),
    )
    federation.federate(PLENTY, [0], after_step=seen.append)
    first, second = weight(9, 0.9 * 10), weight(40, 0.9 * 20)
    assert seen[0].weights == pytest.approx({"agent1": first, "agent2": second}, rel=1e-5)
    share = first / (first + second)
    q, next_q = share * 9 + (1 - share) * 40, share * 10
    (_, actions, targets), (_, next_actions, _) = keeps.improvements
    assert targets == [pytest.approx(q + 0.5 * (0.9 * next_q - q), rel=1e-5)]
    assert (actions, next_actions) == ([0], [1])  # equal weights would choose 0 again
    federation.federate(PLENTY, [1])
    assert keeps.improvements[2][1] == [0]  # a new round begins with equal weights


def test_an_agent_not_usable_at_both_queries_has_no_weight() -> None:
    nan, four, eight = [np.nan] * 2, [4.0] * 2, [8.0] * 2
    for first, expected, members in (
        (AtParity(four, four), 4 + 0.5 * (0.9 * 4 - 4), ["agent1"]),
        # No agent is usable at both: all agents that answered count equally.
        (AtParity(nan, four), 8 + 0.5 * (0.9 * 4 - 8), []),
    ):
        seen: list[RoundProgress] = []
        federation = server(
            [first, AtParity(eight, nan)],
            Counting({}),
            horizon=1,
            rule=rule_named("bellman-weighted", {"exploration": 1.0}),
        )
        federation.federate(PLENTY, [0], after_step=seen.append)
        assert list(seen[0].weights) == members
        assert first.improvements[0][2] == [pytest.approx(expected)]


def test_weights_are_defined_if_every_episode_terminated() -> None:
    agent = Linear([0, 0], offset=4.0)
    seen: list[RoundProgress] = []
    federation = server(
        [agent], Counting({0: 1}), rule=rule_named("bellman-weighted", {"exploration": 0.0})
    )
    federation.federate(Budget(1000, 1), [0], after_step=seen.append)
    assert seen[0].weights == {"agent1": pytest.approx(weight(4, 0), rel=1e-5)}
    assert agent.improvements[0][2] == [pytest.approx(4 + 0.5 * (0 - 4))]


def test_the_server_acts_by_the_rule_it_is_given() -> None:
    agents = [Linear([1, 0]), Linear([1, 1.8])]
    theoretical = FederationServer(
        InProcessCohort(agents, 2),
        Counting({}),
        bernstein(bound=2.0, confidence=1.0),
        horizon_steps=1,
        learning_rate=LEARNING_RATE,
        discount=DISCOUNT,
    )
    theoretical.federate(PLENTY, [1])  # 0.9 + sqrt(2 · 0.81 / 2) beats 1
    assert agents[0].improvements[-1][1] == [1]


def test_terminated_environments_leave_the_round() -> None:
    agent = Linear([0, 0], offset=10.0)
    environments = Counting(terminates={1: 1, 0: 3})
    budget, figures = server([agent], environments, horizon=16).federate(
        Budget(1000, 1), [0, 100, 200]
    )
    sizes = [len(states) for states, _, _ in agent.improvements]
    assert sizes == [3, 2, 2] + [1] * 13  # the transition that ends an episode still counts
    assert figures.server_env_steps == budget.server_env_steps == sum(sizes)
    assert 101 not in [s for states, _, _ in agent.improvements for s in states]
    assert all(s not in (101, 3) for states in agent.queries for s in states)  # terminal states


def test_an_agent_may_be_usable_at_one_query_of_a_step_and_not_at_the_other() -> None:
    class NanAtOdd(Linear):
        def q_values(self, states: Any) -> Any:
            return np.where(states % 2, np.nan, super().q_values(states))

    good, half = Linear([0, 0], offset=4.0), NanAtOdd([0, 0], offset=8.0)
    federation = server([good, half], Counting({}), horizon=1)
    federation.federate(PLENTY, [0])
    # q̄(s) = 6 over both, q̄(s') = 4 over the one that answered
    assert (
        good.improvements[0][2] == half.improvements[0][2] == [pytest.approx(6 + 0.5 * (3.6 - 6))]
    )
    assert federation.refused == {"agent2": 1}


def test_large_finite_answers_do_not_turn_into_nan() -> None:
    sane, huge = Linear([1, 0]), Linear([0, 1e30])
    server([sane, huge], Counting({}), exploration=0.0, horizon=1).federate(PLENTY, [1])
    assert sane.improvements[0][1] == [1]
    assert np.isfinite(sane.improvements[0][2]).all()


def test_a_round_takes_no_step_that_the_budget_cannot_pay() -> None:
    budget, figures = server([Linear([0, 0])], Counting({})).federate(Budget(1, 1), [0, 1])
    assert figures.server_env_steps == budget.server_env_steps == 0


def test_targets_are_masked_on_terminated_but_not_on_truncated() -> None:
    agent = Linear([0, 0], offset=10.0)
    environments = Counting(terminates={0: 1}, truncates={1: 1})
    server([agent], environments).federate(Budget(1000, 1), [0, 100])
    (_, _, targets), *more = agent.improvements
    np.testing.assert_allclose(targets, [10 + 0.5 * (0 - 10), 10 + 0.5 * (9 - 10)])
    assert not more  # a truncated environment leaves the round too


def test_the_next_query_sees_the_improvement() -> None:
    class Adding(Linear):
        def improve(self, states: Any, actions: Any, targets: Any) -> None:
            super().improve(states, actions, targets)
            self.offset += 1

    agent = Adding([0, 0], offset=1.0)
    server([agent], Counting({}), horizon=3).federate(Budget(1000, 1), [0])
    assert [targets for _, _, targets in agent.improvements] == [
        [pytest.approx(q + 0.5 * (0.9 * q - q))] for q in (1.0, 2.0, 3.0)
    ]


def test_a_round_stops_before_it_exceeds_the_budget() -> None:
    agent = Linear([0, 0])
    budget, figures = server([agent], Counting({})).federate(
        Budget(env_steps_per_agent=7, agents=1), [0, 1]
    )
    assert figures.server_env_steps == budget.server_env_steps == 6
    assert len(agent.improvements) == 3


def test_a_bad_agent_is_left_out_named_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    good, bad = Linear([0, 0], offset=4.0), Linear([0, 0], offset=np.nan)
    federation = server([good, bad], Counting({}), horizon=2)
    with caplog.at_level(logging.WARNING):
        _, figures = federation.federate(PLENTY, [0])
    assert good.improvements[0][2] == [pytest.approx(4 + 0.5 * (0.9 * 4 - 4))]
    assert federation.refused == {"agent2": 4}  # two queries in each of two steps
    assert figures.refused_answers == 4
    assert [record.getMessage() for record in caplog.records if "agent2" in record.getMessage()]


def test_a_round_without_usable_answers_raises() -> None:
    with pytest.raises(NoUsableAnswers, match=r"agent1.*NaN"):
        server([Linear([np.nan, 0])], Counting({})).federate(Budget(1000, 1), [1])


def test_carried_over_environments_continue_in_the_next_round() -> None:
    asked = []
    for carry_over in (False, True):
        agent = Linear([1, 2])
        federation = FederationServer(
            InProcessCohort([agent], 2),
            Counting({}),
            mean_std(0.0),
            horizon_steps=2,
            learning_rate=LEARNING_RATE,
            discount=DISCOUNT,
            carry_over=carry_over,
        )
        for _ in range(2):
            federation.federate(Budget(1000, 1), [10])
        asked.append([states for (states, _, _) in agent.improvements])
    assert asked == [[[10], [11], [10], [11]], [[10], [11], [12], [13]]]


@pytest.mark.parametrize(
    "rule", [mean_std(0.0), rule_named("bellman-weighted", {"exploration": 0.5})]
)
def test_an_interrupted_round_resumes_where_it_stopped(rule: Rule) -> None:
    """After two steps a new server resumes from the progress and the environments' states."""
    seeds, budget = [10, 20, 30], Budget(env_steps_per_agent=100, agents=2)
    ends = {1: 3}

    def federation(environments: Counting) -> tuple[Linear, FederationServer]:
        agents = [Linear([1, 2]), Linear([2.5, -1])]
        return agents[0], server(agents, environments, rule=rule)

    undisturbed, first = federation(Counting(terminates=ends))
    whole = first.federate(budget, seeds)

    class Killed(Exception): ...

    seen: list[RoundProgress] = []

    def kill_at_two(progress: RoundProgress) -> None:
        seen.append(progress)
        if progress.steps == 2:
            raise Killed

    environments = Counting(terminates=ends)
    with pytest.raises(Killed):
        federation(environments)[1].federate(budget, seeds, after_step=kill_at_two)
    left = budget.after_server_steps(seen[-1].server_env_steps)
    kept = RoundProgress(**json.loads(json.dumps(asdict(seen[-1]))))  # as it is stored in a journal
    agent, second = federation(environments)
    assert second.federate(left, seeds, going_on=kept) == whole
    assert agent.improvements == undisturbed.improvements[2:]
    assert bool(kept.weights) == rule.weighted
    assert [progress.server_env_steps for progress in seen] == [3, 6]

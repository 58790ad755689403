from typing import Any

import numpy as np
import pytest

from fedhql.engines.evaluation import evaluate, points_passed
from fedhql.environments.batch import EnvironmentBatch
from fedhql.environments.make import make_environment
from fedhql.federation import InProcessCohort, rule_named
from fedhql.federation.attacks import attack_number
from fedhql.federation.consensus import consensus

DISCOUNT = 0.9


class Balancer:
    """Pushes the cart to the side the pole leans to with `sign` 1, else to the other side."""

    def __init__(self, sign: float) -> None:
        self.sign = sign

    def self_learn(self, env_steps: int) -> None: ...

    def q_values(self, states: Any) -> Any:
        lean = self.sign * (states[:, 2] + states[:, 3])
        return np.stack([-lean, lean], axis=1)

    def improve(self, states: Any, actions: Any, targets: Any) -> None: ...


def alone(agent: Balancer, seed: int) -> tuple[float, float, int, float]:
    """Return the return, the discounted return, the length and the value of the start."""
    env = make_environment("CartPole-v1")
    state, _ = env.reset(seed=int(seed))
    start_value = float(agent.q_values(state[None])[0].max())
    total, discounted, length, ended = 0.0, 0.0, 0, False
    while not ended:
        action = int(agent.q_values(state[None])[0].argmax())
        state, reward, terminated, truncated, _ = env.step(action)
        total, discounted = total + float(reward), discounted + DISCOUNT**length * float(reward)
        length, ended = length + 1, terminated or truncated
    return total, discounted, length, start_value


def test_episodes_side_by_side_equal_single_episodes() -> None:
    agents = [Balancer(-1), Balancer(1), Balancer(-1)]
    seeds_NE = np.arange(12, dtype=np.uint32).reshape(3, 4)
    played = evaluate(
        InProcessCohort(agents, 2).act_each,
        EnvironmentBatch("CartPole-v1", 12),
        seeds_NE,
        discount=DISCOUNT,
    )
    for n, agent in enumerate(agents):
        expected = [alone(agent, seed) for seed in seeds_NE[n]]
        for figure, of_agent in zip(played, zip(*expected, strict=True), strict=True):
            np.testing.assert_allclose(figure[n], of_agent, rtol=1e-6)
    assert played.returns[1].mean() > 10 * played.returns[0].mean()


def test_the_consensus_policy_acts_in_the_centre_of_all_answers() -> None:
    """Two of three agents balance the pole, so their mean does; the first agent alone does not."""
    agents = [Balancer(-1), Balancer(1), Balancer(1)]
    seeds_PE = np.arange(8, dtype=np.uint32).reshape(4, 2)
    asked: list[int] = []

    def act_each(states: Any) -> Any:
        asked.append(len(states))
        return InProcessCohort(agents, 2).act_each(states)

    rule = rule_named("mean-std", {"exploration": 1.0})
    played = evaluate(
        act_each,
        EnvironmentBatch("CartPole-v1", 8),
        seeds_PE,
        discount=DISCOUNT,
        centre=consensus(rule),
    )
    alike = Balancer(1 / 3)  # the mean of -1, 1 and 1
    for figure, of_policy in zip(
        played, zip(*(alone(alike, seed) for seed in seeds_PE[3]), strict=True), strict=True
    ):
        np.testing.assert_allclose(figure[3], of_policy, rtol=1e-6)
    assert played.returns[3].min() > 5 * played.returns[0].max()
    assert len(asked) == played.lengths.max()  # no exchanges of its own


class SelfWilled(Balancer):
    """Answers the values of a `Balancer`, but acts the other way."""

    def act(self, states: Any) -> Any:
        return self.q_values(states).argmin(axis=1)


def test_an_agent_that_acts_by_its_own_rule_is_evaluated_by_it() -> None:
    """Start values and the consensus policy still come from its values."""
    seeds_PE = np.arange(4, dtype=np.uint32).reshape(2, 2)
    played = evaluate(
        InProcessCohort([SelfWilled(-1)], 2).act_each,
        EnvironmentBatch("CartPole-v1", 4),
        seeds_PE,
        discount=DISCOUNT,
        centre=consensus(rule_named("mean-std", {"exploration": 1.0})),
    )
    for row, acts in enumerate([Balancer(1), Balancer(-1)]):
        assert played.returns[row].tolist() == [alone(acts, seed)[0] for seed in seeds_PE[row]]
    values = [alone(Balancer(-1), seed)[3] for seed in seeds_PE[0]]
    np.testing.assert_allclose(played.start_values[0], values, rtol=1e-6)
    assert played.returns[0].min() > 5 * played.returns[1].max()


def test_the_consensus_leaves_out_what_is_not_finite_and_is_under_attack() -> None:
    rule = rule_named("mean-std", {"exploration": 1.0})
    answers = [np.array([[1.0, 3.0]]), np.array([[3.0, 5.0]]), np.array([[np.nan, 0.0]])]
    assert consensus(rule)(answers).tolist() == [[2, 4]]
    assert np.isnan(consensus(rule)(answers[2:])).all()
    lying = consensus(rule, attack_number("sign-flip"), attackers=1)
    assert lying(answers[:2]).tolist() == [[-1, -1]]
    weighted = rule_named("bellman-weighted", {"exploration": 1.0})
    assert consensus(weighted)(answers[:2]).tolist() == [[2, 4]]


@pytest.mark.parametrize(
    ("consumed", "passed"),
    [(0, 0), (99.9, 0), (100, 1), (299, 2), (449, 4), (449.2, 5), (450, 5)],
)
def test_evaluations_are_due_at_fixed_consumption(consumed: float, passed: int) -> None:
    assert points_passed(consumed, interval=100, budget=450) == passed


def test_an_agent_that_answers_nan_still_acts() -> None:
    played = evaluate(
        InProcessCohort([Balancer(np.nan)], 2).act_each,
        EnvironmentBatch("CartPole-v1", 2),
        np.zeros((1, 2), dtype=np.uint32),
        discount=DISCOUNT,
    )
    assert (played.returns > 0).all()
    assert np.isnan(played.start_values).all()


@pytest.mark.parametrize("limit", [1, 37])
def test_an_episode_ends_at_the_step_limit(limit: int) -> None:
    played = evaluate(
        InProcessCohort([Balancer(1)], 2).act_each,
        EnvironmentBatch("CartPole-v1", 2),
        np.zeros((1, 2), dtype=np.uint32),
        discount=DISCOUNT,
        episode_step_limit=limit,
    )
    assert (played.returns == limit).all()
    assert (played.lengths == limit).all()

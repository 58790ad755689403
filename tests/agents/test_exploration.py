import numpy as np
import pytest

from fedhql.agents.exploration import (
    annealed_epsilon,
    annealing_of,
    boltzmann,
    count_ucb,
    epsilon_greedy,
)
from fedhql.errors import AgentRefused

Q = np.array([1.0, 3.0, 2.0])


def frequencies(actions: list[int]) -> np.ndarray:
    return np.bincount(actions, minlength=3) / len(actions)


def test_epsilon_greedy_explores_with_probability_epsilon() -> None:
    rng = np.random.default_rng(0)
    assert {epsilon_greedy(Q, 0.0, rng) for _ in range(100)} == {1}
    drawn = frequencies([epsilon_greedy(Q, 0.3, rng) for _ in range(20_000)])
    # 6 standard errors of a proportion over 20,000 draws are at most 0.021.
    np.testing.assert_allclose(drawn, [0.1, 0.8, 0.1], atol=0.021)


def test_ties_are_broken_by_the_lowest_index_or_at_random() -> None:
    rng, tie = np.random.default_rng(0), np.array([1.0, 3.0, 3.0])
    assert {epsilon_greedy(tie, 0.0, rng) for _ in range(100)} == {1}
    assert {epsilon_greedy(tie, 0.0, rng, random_ties=True) for _ in range(100)} == {1, 2}
    assert epsilon_greedy(np.array([1.0, np.nan]), 0.0, rng, random_ties=True) == 1


def test_boltzmann_draws_by_the_softmax() -> None:
    rng = np.random.default_rng(0)
    drawn = frequencies([boltzmann(Q, 2.0, rng) for _ in range(20_000)])
    weights = np.exp(Q / 2)
    np.testing.assert_allclose(drawn, weights / weights.sum(), atol=0.021)
    assert boltzmann(1e6 * Q, 1e-3, rng) == 1  # no overflow


def test_count_ucb_equals_hand_computed_choices() -> None:
    assert count_ucb(Q, np.array([5, 5, 0]), 1.0) == 2  # untried first
    # log 12 = 2.485: bonuses sqrt(2.485 / (1, 10, 1)) = 1.576, 0.498, 1.576
    assert count_ucb(Q, np.array([1, 10, 1]), 1.0) == 2  # 2.58, 3.50, 3.58
    assert count_ucb(Q, np.array([1, 10, 1]), 0.5) == 1  # 1.79, 3.25, 2.79


@pytest.mark.parametrize(("step", "epsilon"), [(0, 1.0), (50, 0.55), (100, 0.1), (1000, 0.1)])
def test_epsilon_falls_linearly_to_its_final_value(step: int, epsilon: float) -> None:
    budget = annealing_of("budget", 0.1, 1_000, 200)
    assert annealed_epsilon(0.1, 1.0, budget, step) == pytest.approx(epsilon)


@pytest.mark.parametrize(
    ("step", "epsilon"), [(0, 1.0), (50, 0.55), (100, 0.1), (199, 0.1), (200, 1.0), (450, 0.55)]
)
def test_epsilon_falls_again_in_each_phase(step: int, epsilon: float) -> None:
    phase = annealing_of("phase", 0.5, 1_000, 200)
    assert annealed_epsilon(0.1, 1.0, phase, step) == pytest.approx(epsilon)


@pytest.mark.parametrize("over", ["budget", "phase"])
def test_without_annealing_epsilon_is_constant(over: str) -> None:
    constant = annealing_of(over, 0.0, 1_000, 200)
    assert [annealed_epsilon(0.1, 1.0, constant, step) for step in (0, 200)] == [0.1, 0.1]


def test_annealing_over_phases_needs_their_length() -> None:
    assert annealing_of("budget", 0.5, 1_000, None).env_steps == 500
    with pytest.raises(AgentRefused, match="exploration_annealing = 'phase' needs the length"):
        annealing_of("phase", 0.5, 1_000, None)

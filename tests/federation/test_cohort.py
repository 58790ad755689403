from typing import Any

import numpy as np
import pytest
import torch

from fedhql import BlackBoxAgent
from fedhql.errors import AgentRefused
from fedhql.federation import InProcessCohort


class Fixed:
    """An agent that answers the same values everywhere and records its improvements."""

    def __init__(self, *values: float) -> None:
        self.values = values
        self.learned = 0
        self.improvements: list[tuple[Any, Any, Any]] = []

    def self_learn(self, env_steps: int) -> None:
        self.learned += env_steps

    def q_values(self, states: Any) -> Any:
        return np.tile(np.array(self.values, dtype=np.float32), (len(states), 1))

    def improve(self, states: Any, actions: Any, targets: Any) -> None:
        self.improvements.append((states, actions, targets))


def test_a_plain_class_is_a_black_box_agent() -> None:
    assert isinstance(Fixed(1, 2), BlackBoxAgent)


def test_query_stacks_answers_in_cohort_order() -> None:
    answers = InProcessCohort([Fixed(1, 2), Fixed(3, 4)], 2).query(np.zeros((3, 4)))
    assert answers.q_NBA.shape == (2, 3, 2)
    np.testing.assert_array_equal(answers.q_NBA[:, 0], [[1, 2], [3, 4]])
    assert answers.members == (0, 1)
    assert not answers.refused


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_agent_with_one_bad_value_is_left_out(bad: float) -> None:
    answers = InProcessCohort([Fixed(1, 2), Fixed(bad, 4)], 2).query(np.zeros((3, 4)))
    assert answers.q_NBA.shape == (1, 3, 2)
    assert answers.members == (0,)
    assert list(answers.refused) == [1]


def test_a_wrong_shape_names_the_agent_and_both_shapes() -> None:
    cohort = InProcessCohort([Fixed(1, 2), Fixed(1, 2, 3)], 2)
    with pytest.raises(AgentRefused, match=r"agent2.*\(3, 2\).*\(3, 3\)"):
        cohort.query(np.zeros((3, 4)))


def test_answers_that_are_not_numbers_are_refused() -> None:
    agent = Fixed(1, 2)
    agent.q_values = lambda states: "no"  # type: ignore[method-assign]  # a misbehaving agent
    with pytest.raises(AgentRefused, match=r"agent1.*str"):
        InProcessCohort([agent], 2).query(np.zeros((3, 4)))


def test_no_agent_can_change_the_arrays_of_another() -> None:
    class Meddling(Fixed):
        memory = np.ones((3, 2), dtype=np.float32)

        def q_values(self, states: Any) -> Any:
            states += 100
            return self.memory  # Watching changes it after this answer

        def improve(self, states: Any, actions: Any, targets: Any) -> None:
            states += 100
            targets += 100
            actions += 100

    class Watching(Fixed):
        def q_values(self, states: Any) -> Any:
            Meddling.memory += 5
            return states[:, :2]

    watching = Watching(0, 0)
    cohort = InProcessCohort([Meddling(0, 0), watching], 2)
    states = np.zeros((3, 4), dtype=np.float32)
    np.testing.assert_array_equal(cohort.query(states).q_NBA[0], 1)
    np.testing.assert_array_equal(cohort.query(states).q_NBA[1], 0)
    cohort.improve(states, np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.float32))
    for array in watching.improvements[0]:
        np.testing.assert_array_equal(array, 0)
    np.testing.assert_array_equal(states, 0)


def test_a_tensor_that_requires_grad_is_refused_with_the_agents_name() -> None:
    agent = Fixed(1, 2)
    agent.q_values = lambda states: torch.zeros(3, 2, requires_grad=True)  # type: ignore[method-assign]  # a misbehaving agent
    with pytest.raises(AgentRefused, match=r"agent1.*Tensor.*detach"):
        InProcessCohort([agent], 2).query(np.zeros((3, 4)))


def test_act_each_asks_each_agent_about_its_own_states_and_skips_empty_batches() -> None:
    asked: list[int] = []

    class Listening(Fixed):
        def q_values(self, states: Any) -> Any:
            asked.append(len(states))
            return super().q_values(states)

    answers = InProcessCohort([Listening(1, 2), Listening(3, 4), Listening(5, 6)], 2).act_each(
        [np.zeros((2, 4)), np.zeros((0, 4)), np.zeros((1, 4))]
    )
    assert [answer.values.shape for answer in answers] == [(2, 2), (0, 2), (1, 2)]
    assert asked == [2, 1]


class Contrary(Fixed):
    """Acts by its own rule: it takes the action of the smallest value."""

    def act(self, states: Any) -> Any:
        return self.q_values(states).argmin(axis=1)


def test_agents_act_by_their_own_rule_or_greedily() -> None:
    cohort = InProcessCohort([Contrary(1, 3, 2), Fixed(1, np.nan, 2), Contrary(1, 2, 3)], 3)
    first, second, third = cohort.act_each([np.zeros((2, 4)), np.zeros((1, 4)), np.zeros((0, 4))])
    np.testing.assert_array_equal(first.values, [[1, 3, 2]] * 2)
    assert (first.actions.tolist(), second.actions.tolist()) == ([0, 0], [2])
    assert (third.values.shape, third.actions.shape) == ((0, 3), (0,))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ([0, 2], r"agent1: act must return actions from 0 to 1; got 0 to 2"),
        ([0, -1], r"from 0 to 1; got -1 to 0"),
        ([[0], [1]], r"whole numbers of shape \(2,\); got int64 of shape \(2, 1\)"),
        ([0.0, 1.0], r"whole numbers of shape \(2,\); got float64"),
    ],
)
def test_what_is_not_one_action_for_each_state_is_refused(answer: Any, reason: str) -> None:
    agent = Contrary(1, 2)
    agent.act = lambda states: np.array(answer)  # type: ignore[method-assign]  # a misbehaving agent
    with pytest.raises(AgentRefused, match=reason):
        InProcessCohort([agent], 2).act_each([np.zeros((2, 4))])


def test_an_object_that_is_not_an_agent_is_refused_with_the_methods_it_lacks() -> None:
    not_an_agent: Any = object()
    with pytest.raises(AgentRefused, match=r"agent2.*lacks self_learn, q_values, improve"):
        InProcessCohort([Fixed(1, 2), not_an_agent], 2)
    with pytest.raises(AgentRefused, match="at least one"):
        InProcessCohort([], 2)


def test_an_exception_inside_an_agent_names_the_agent() -> None:
    class Broken(Fixed):
        def self_learn(self, env_steps: int) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        InProcessCohort([Fixed(1, 2), Broken(1, 2)], 2).self_learn(1)
    assert any("agent2" in note for note in caught.value.__notes__)

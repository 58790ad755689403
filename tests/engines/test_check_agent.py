"""`fedhql check` finds what is wrong with an agent before a federation does."""

from itertools import count
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from fedhql.engines.check_agent import Finding, check_agent
from fedhql.errors import AgentRefused
from fedhql.settings.experiment import read_settings

SETTINGS = """
[environment]
id = "CartPole-v1"
discount = 0.99
[budget]
env_steps_per_agent = 100
[[agents]]
kind = "tests.engines.test_check_agent:{name}"
"""


class Good:
    """A linear agent that learns nothing by itself, and saves its weights."""

    def __init__(self, seed: int, env_id: str = "CartPole-v1") -> None:
        self.env = gym.make(env_id)
        self.weights = np.random.default_rng(seed).normal(size=(4, 2))
        self.steps = 0

    def self_learn(self, env_steps: int) -> None:
        self.steps += env_steps
        self.weights = self.weights * 0.999**self.steps

    def q_values(self, states: Any) -> Any:
        return states @ self.weights

    def improve(self, states: Any, actions: Any, targets: Any) -> None:
        errors = targets - self.q_values(states)[np.arange(len(states)), actions]
        for action in np.unique(actions):
            rows = actions == action
            self.weights[:, action] += 0.1 * states[rows].T @ errors[rows] / len(states)

    def act(self, states: Any) -> Any:
        return self.q_values(states).argmax(axis=1)

    def save(self, directory: Path) -> None:
        np.savez(directory / "weights.npz", weights=self.weights, steps=self.steps)

    def restore(self, directory: Path) -> None:
        with np.load(directory / "weights.npz") as saved:
            self.weights, self.steps = saved["weights"], int(saved["steps"])

    def export(self, directory: Path) -> None:
        self.save(directory)


class Inexact(Good):
    def restore(self, directory: Path) -> None:
        super().restore(directory)
        self.steps = 0


class Forgetful(Good):
    def restore(self, directory: Path) -> None: ...


class Elsewhere(Good):
    def __init__(self, seed: int) -> None:
        super().__init__(seed, "MountainCar-v0")


class Narrow(Good):
    def q_values(self, states: Any) -> Any:
        return super().q_values(states)[:, :1]


class Diverged(Good):
    def q_values(self, states: Any) -> Any:
        return super().q_values(states) * np.nan


class Noisy(Good):
    def q_values(self, states: Any) -> Any:
        self.weights = self.weights + 0.01
        return super().q_values(states)


class Normalising(Good):
    def q_values(self, states: Any) -> Any:
        return super().q_values(states - states.mean(axis=0))


class Stubborn(Good):
    def improve(self, states: Any, actions: Any, targets: Any) -> None: ...


class Wild(Good):
    def act(self, states: Any) -> Any:
        return np.full(len(states), 2)


class FloatActions(Good):
    def act(self, states: Any) -> Any:
        return super().act(states).astype(float)


class Squeezed(Good):
    def q_values(self, states: Any) -> Any:
        return np.squeeze(super().q_values(states))


class Raising(Good):
    def improve(self, states: Any, actions: Any, targets: Any) -> None:
        raise RuntimeError("no gradient")


class Silent(Good):
    def export(self, directory: Path) -> None: ...


class Bare:
    """Only the three methods."""

    def __init__(self, seed: int) -> None:
        good = Good(seed)
        self.self_learn, self.q_values, self.improve = good.self_learn, good.q_values, good.improve


def findings(name: str, seconds: float = 1.0) -> list[Finding]:
    """Check the class named `name`; every call takes so many seconds by the clock."""
    ticks = count()
    settings = read_settings(SETTINGS.format(name=name))
    return list(check_agent(settings, 10, lambda: next(ticks) * seconds))


def test_a_good_agent_passes_every_check() -> None:
    found = findings("Good")
    assert [each.passed for each in found] == [True] * 10
    speed = next(each.detail for each in found if each.what == "self_learn")
    assert speed == "asked for 10 env steps in 1 s; not counted"
    assert not any(each.warning for each in found)


class Idle(Good):
    def self_learn(self, env_steps: int) -> None: ...


class BareIdle(Bare):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.self_learn = lambda env_steps: None


class Collecting(Good):
    """Changes no values at first, only what it saves."""

    def self_learn(self, env_steps: int) -> None:
        self.steps += env_steps


def learning(name: str, seconds: float = 1.0) -> Finding:
    (found,) = (each for each in findings(name, seconds) if each.what == "self_learn")
    return found


@pytest.mark.parametrize(
    ("name", "warning"),
    [
        ("Idle", "neither the values nor what it saves have changed: does it learn?"),
        ("BareIdle", "the values have not changed: does it learn?"),
        ("Collecting", ""),
    ],
)
def test_an_agent_that_self_learning_does_not_change_is_warned_of(name: str, warning: str) -> None:
    found = learning(name)
    assert found.passed
    assert found.warning == warning


def test_learning_faster_than_is_possible_is_warned_of() -> None:
    too_fast = "more than 10,000,000 env steps a second are not possible"
    assert learning("Good", 0.9e-6).warning == f"{too_fast}: does it step its environment?"
    assert learning("Good", 1.1e-6).warning == ""


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("Forgetful", "save and restore"),
        ("Elsewhere", "environment"),
        ("Narrow", "q_values: shape"),
        ("Diverged", "q_values: shape"),
        ("Noisy", "q_values: the same answer twice"),
        ("Normalising", "q_values: one state at a time"),
        ("Stubborn", "improve"),
        ("Wild", "act"),
        ("FloatActions", "act"),
        ("Squeezed", "q_values: one state at a time"),
        ("Raising", "improve"),
        ("Silent", "export"),
    ],
)
def test_a_wrong_agent_fails_the_check_of_what_is_wrong(name: str, what: str) -> None:
    failed = [each.what for each in findings(name) if each.passed is False]
    assert failed
    assert failed[0].startswith(what)


def test_an_agent_that_restores_other_values_is_told_what_to_save() -> None:
    (detail,) = (each.detail for each in findings("Forgetful") if each.passed is False)
    assert detail.startswith("the restored agent has other values: save everything, also what the")


def test_an_agent_that_goes_on_otherwise_works_but_is_not_exact() -> None:
    found = findings("Inexact")
    assert all(each.passed for each in found)
    (warning,) = (each.warning for each in found if each.warning)
    assert warning.startswith("works, but not exact: a resumed run differs")
    assert warning.endswith("what the constructor draws from its seed, and the environment")


def test_what_an_agent_raises_is_in_the_table_and_other_checks_go_on() -> None:
    found = findings("Raising")
    assert len(found) == 10
    (failed,) = (each for each in found if each.passed is False)
    assert failed.detail == "RuntimeError: no gradient"


def test_a_class_without_the_methods_is_refused() -> None:
    with pytest.raises(AgentRefused, match="it lacks improve"):
        findings("Incomplete")


class Incomplete:
    def __init__(self, seed: int) -> None: ...

    def self_learn(self, env_steps: int) -> None: ...

    def q_values(self, states: Any) -> Any: ...


def test_what_an_agent_need_not_have_is_not_judged() -> None:
    found = {each.what.partition(":")[0]: each.passed for each in findings("Bare")}
    assert {what for what, passed in found.items() if passed is None} == {
        "environment",
        "act",
        "save and restore",
        "export",
    }
    assert False not in found.values()

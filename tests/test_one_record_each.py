"""Each thing that people add to fedhql is one record: everything else derives from it."""

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from fedhql.agents import kinds
from fedhql.agents.dqn import config
from fedhql.agents.kinds import AgentKind
from fedhql.engines.choice import choose_engine
from fedhql.environments import compiled
from fedhql.environments.compiled import _of_twin
from fedhql.errors import SettingsError
from fedhql.federation import attacks, rules
from fedhql.federation.attacks import AttackSpec
from fedhql.federation.rules import RuleSpec, upper_bound
from fedhql.settings.arms import settings_of_arm
from fedhql.settings.experiment import read_settings
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.run_directory import Cell
from tests.agents.dqn.corridor import CORRIDOR
from tests.compiled.both_engines import by_compiled_programs, by_messages

TEXT = """
[environment]
id = "CartPole-v1"
[federation]
query_batch = 2
horizon_steps = 2
self_learning_env_steps = 12
[budget]
env_steps_per_agent = 100
[[agents]]
hidden = [3]
[[agents]]
hidden = [2]
[[agents]]
hidden = [2]
"""
QUICK = ("agents.learning_starts=4", "agents.train_freq=1", "agents.improvement_steps=1")


def add(monkeypatch: pytest.MonkeyPatch, records: Mapping[str, Any], name: str, one: Any) -> None:
    monkeypatch.setitem(records, name, one)


def experiment(*overrides: str) -> ExperimentSettings:
    return read_settings(TEXT, [*QUICK, *overrides])


def assert_both_engines_agree(settings: ExperimentSettings, arm: str = "fedhql") -> None:
    cell = Cell(arm, 0)
    (compiled_rounds,) = by_compiled_programs(settings, [cell], 1)
    for ours, theirs in zip(compiled_rounds, by_messages(settings, cell, 1), strict=True):
        np.testing.assert_array_equal(np.concatenate(ours.actions), np.concatenate(theirs.actions))
        for mine, other in zip(ours.improved, theirs.improved, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_a_rule_an_attack_and_an_optimiser(monkeypatch: pytest.MonkeyPatch) -> None:
    def highest(q: Any, *, where: Any = True) -> Any:
        xp = q.__array_namespace__()
        there = where if where is True else where.reshape(-1, *(1,) * (q.ndim - 1))
        return xp.where(there, q, -xp.inf).max(axis=0)

    def optimist(exploration: Any) -> Any:
        return upper_bound(highest, highest, exploration)

    with pytest.raises(SettingsError, match=r"'optimist' is wrong; allowed: 'mean-std'"):
        experiment("federation.rule=optimist")
    add(monkeypatch, rules.RULES, "optimist", RuleSpec(optimist))
    add(monkeypatch, attacks.ATTACKS, "zero", AttackSpec(lambda seen: 0 * seen.own_NBA))
    add(monkeypatch, config.OPTIMISERS, "lion", "optax:lion")
    settings = experiment("federation.rule=optimist", "agents.1.optimizer=lion")
    arm = "exploration=3,attack=zero,attackers=1"
    assert settings_of_arm(settings, arm).attack.name == "zero"
    assert choose_engine(settings, "auto") == "compiled"
    assert_both_engines_agree(settings, arm)


def test_a_compiled_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the size of MountainCar, whose name it takes."""
    add(monkeypatch, compiled.COMPILED_ENVIRONMENTS, "MountainCar-v0", _of_twin(CORRIDOR))
    settings = experiment("environment.id=MountainCar-v0")
    assert choose_engine(settings, "compiled") == "compiled"
    (rounds,) = by_compiled_programs(settings, [Cell("fedhql", 0)], 1)
    assert set(np.concatenate(rounds[0].actions)) <= {0, 1}  # where MountainCar has three


def test_a_kind_of_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    class ConstantSettings(BaseModel):
        """What an agent that always answers the same may be told."""

        value: float = 1.0

    class Constant:
        def __init__(self, value: float) -> None:
            self.value = value

        def self_learn(self, env_steps: int) -> None: ...

        def q_values(self, states: Any) -> Any:
            return np.full((len(states), 2), self.value)

        def improve(self, states: Any, actions: Any, targets: Any) -> None: ...

    module: Any = ModuleType("constant_agent")
    module.build = lambda settings, task: Constant(settings.value)
    monkeypatch.setitem(sys.modules, "constant_agent", module)
    with pytest.raises(SettingsError, match=r"unknown kind 'constant'; .*allowed: dqn"):
        experiment("agents.1.kind=constant")
    add(monkeypatch, kinds.KINDS, "constant", AgentKind(ConstantSettings, "constant_agent"))
    text = TEXT.replace("hidden = [3]", 'kind = "constant"\nvalue = 7')
    settings = read_settings(text)
    assert choose_engine(settings, "auto") == "messages"
    with pytest.raises(SettingsError, match=r"kind 'dqn' only; agent1 is 'constant'"):
        choose_engine(settings, "compiled")
    with pytest.raises(SettingsError, match=r"agents.1.value: 'much' is wrong"):
        read_settings(text.replace("7", '"much"'))

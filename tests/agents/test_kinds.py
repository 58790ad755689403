import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedhql import BlackBoxAgent
from fedhql.agents.kinds import KINDS, build_agent, find_kind
from fedhql.agents.task import AgentTask
from fedhql.environments.make import make_environment
from fedhql.errors import AgentRefused, MissingExtra, SettingsError


def build(kind: str, **options: object) -> object:
    return build_agent(kind, options, task("CartPole-v1"))


def task(env_id: str) -> AgentTask:
    make = partial(make_environment, env_id)
    return AgentTask(env_id, make, lambda: None, discount=0.9, budget_env_steps=100, seed=5)


def test_a_users_class_gets_its_settings_and_a_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_agents.py").write_text(
        "class Mine:\n    def __init__(self, **given): self.given = given\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    mine = build("my_agents:Mine", colour="red", size=3)
    assert vars(mine) == {"given": {"colour": "red", "size": 3, "seed": 5}}


class Informed:
    """Takes all that is offered; says which environment it has."""

    def __init__(
        self, seed: int, *, env_id: str, discount: float = 0.5, budget_env_steps: int = 1
    ) -> None:
        self.env_id, self.given = env_id, (seed, discount, budget_env_steps)


class Elsewhere:
    env_id = "MountainCar-v0"

    def __init__(self, seed: int) -> None: ...


def test_a_users_class_gets_the_facts_of_the_task_that_it_takes() -> None:
    informed: Any = build("tests.agents.test_kinds:Informed")
    assert (informed.env_id, informed.given) == ("CartPole-v1", (5, 0.9, 100))


def test_a_users_settings_win_over_the_task() -> None:
    informed: Any = build("tests.agents.test_kinds:Informed", discount=0.7)
    assert informed.given == (5, 0.7, 100)


@pytest.mark.parametrize(
    ("name", "options"), [("Informed", {"env_id": "MountainCar-v0"}), ("Elsewhere", {})]
)
def test_an_agent_with_another_environment_is_refused(name: str, options: dict[str, str]) -> None:
    wrong = "has env_id = 'MountainCar-v0', but the environment is 'CartPole-v1'"
    with pytest.raises(AgentRefused, match=wrong):
        build(f"tests.agents.test_kinds:{name}", **options)


def test_the_module_before_an_id_does_not_make_another_environment() -> None:
    agent: Any = build("tests.agents.test_kinds:Informed", env_id="own_module:CartPole-v1")
    assert agent.env_id == "own_module:CartPole-v1"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("no_such.module:Class", "no module 'no_such.module' in "),
        ("json:Nope", "json has no 'Nope'; it has nothing that fits"),
        ("agents/mine.py:Tab", "names a file; write the module: agents.mine:Tab"),
        (
            "tests.engines.test_check_agent:Nosy",
            "test_check_agent has no 'Nosy'; did you mean 'Noisy'[?] it has Good, .*, Noisy, ",
        ),
        ("tests.agents.test_kinds:__name__", "is no class: 'tests.agents.test_kinds' is not"),
    ],
)
def test_a_class_that_does_not_exist_is_refused_with_the_reason(kind: str, reason: str) -> None:
    with pytest.raises(AgentRefused, match=reason):
        build(kind)


def test_a_setting_that_a_class_does_not_take_is_refused_with_those_it_takes() -> None:
    taken = "its constructor takes seed, env_id, discount, budget_env_steps$"
    reason = rf"unexpected keyword argument 'discont'; did you mean 'discount'[?] {taken}"
    with pytest.raises(AgentRefused, match=reason):
        build("tests.agents.test_kinds:Informed", discont=0.5)


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("dqm", "did you mean 'dqn'[?] allowed"),
        ("mine", "for a class of your own, write mine:Class; allowed"),
        ("mine.py", "for a class of your own, write mine:Class; allowed"),
    ],
)
def test_an_unknown_kind_is_refused_with_a_hint(kind: str, hint: str) -> None:
    with pytest.raises(SettingsError, match=hint):
        find_kind(kind)


@pytest.mark.parametrize("kind", ["dqm", ":Class", "module:"])
def test_an_unknown_kind_is_refused_with_those_allowed(kind: str) -> None:
    with pytest.raises(SettingsError, match=rf"unknown kind '{kind}'.*sb3-dqn, .*tabular"):
        find_kind(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_built_from_its_defaults(kind: str) -> None:
    env_id = "FrozenLake-v1" if kind == "tabular" else "CartPole-v1"
    assert isinstance(build_agent(kind, {}, task(env_id)), BlackBoxAgent)


@pytest.mark.parametrize("kind", ["dqn", "sb3-dqn", "sb3-qrdqn"])
def test_annealing_in_phases_of_unknown_length_is_refused(kind: str) -> None:
    with pytest.raises(AgentRefused, match="needs the length of a self-learning phase"):
        build(kind, exploration_annealing="phase")


def test_a_missing_extra_prints_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    monkeypatch.delitem(sys.modules, "fedhql.agents.sb3.dqn", raising=False)
    with pytest.raises(MissingExtra, match=r"pip install 'fedhql\[sb3\]'"):
        build("sb3-dqn")

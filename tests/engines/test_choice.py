import importlib.util
import re
from collections.abc import Sequence
from typing import Any

import pytest

from fedhql.engines import build, message_engine
from fedhql.engines.choice import choose_engine
from fedhql.engines.compiled_engine import CompiledEngine
from fedhql.environments import compiled
from fedhql.environments.compiled import COMPILED_ENVIRONMENTS
from fedhql.errors import EnvironmentRefused, MissingExtra, SettingsError
from fedhql.running.local_executor import agents_here
from fedhql.settings.experiment import read_settings, with_backbone
from fedhql.settings.sections import ExperimentSettings

TEXT = """
[environment]
id = "{env_id}"
[budget]
env_steps_per_agent = 1000
[[agents]]
hidden = [8]
learning_rate = 0.02
[[agents]]
"""


def settings(env_id: str = "CartPole-v1", overrides: Sequence[str] = ()) -> ExperimentSettings:
    return read_settings(TEXT.format(env_id=env_id), overrides)


SB3 = settings(overrides=["agents.2.kind=sb3-dqn"])
SECURE = read_settings(
    TEXT.format(env_id="CartPole-v1") + "[[agents]]\n", ["federation.secure_aggregation=true"]
)
OPTIONS = settings(overrides=["environment.options.sutton_barto_reward=true"])


@pytest.mark.parametrize("env_id", COMPILED_ENVIRONMENTS)
def test_auto_chooses_the_compiled_engine_where_it_can(
    env_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "find_spec", lambda name: object())
    assert choose_engine(settings(env_id), "auto") == "compiled"
    assert choose_engine(settings(env_id), "compiled") == "compiled"
    assert choose_engine(settings(env_id), "messages") == "messages"


@pytest.mark.parametrize(
    ("impossible", "why", "warned"),
    [
        (SB3, r"agents of kind 'dqn' only; agent2 is 'sb3-dqn'", False),
        (settings("FrozenLake-v1"), r"has no FrozenLake-v1; it has CartPole-v1", False),
        (SECURE, r"the compiled engine has no secure aggregation; .* the engine is messages", True),
        (OPTIONS, r"has no CartPole-v1 with options .*sutton_barto_reward", True),
    ],
)
def test_auto_chooses_messages_where_nothing_can_be_compiled(
    impossible: ExperimentSettings, why: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Users are warned if they would expect the compiled engine."""
    assert choose_engine(impossible, "auto") == "messages"
    assert bool(re.search(why + ".*more slowly", caplog.text)) == warned
    with pytest.raises(SettingsError, match=why):
        choose_engine(impossible, "compiled")


@pytest.mark.parametrize("engine", ["auto", "compiled", "messages"])
@pytest.mark.parametrize(
    ("env_id", "implementation"), [("CartPole-v1", "envpool"), ("FrozenLake-v1", "twin")]
)
def test_an_implementation_that_an_environment_lacks_is_refused(
    env_id: str, implementation: str, engine: str
) -> None:
    lacks = settings(env_id, [f"environment.implementation={implementation}"])
    message = f"implementation = '{implementation}': {env_id} has none; allowed: 'auto'"
    with pytest.raises(EnvironmentRefused, match=message):
        choose_engine(lacks, engine)


def test_the_compiled_engine_names_the_options_that_its_environments_take() -> None:
    continuous = settings("LunarLander-v3", ["environment.options.continuous=true"])
    with pytest.raises(
        SettingsError, match=r"Acrobot-v1 \(without options\), LunarLander-v3 \(with gra"
    ):
        choose_engine(continuous, "compiled")


def test_a_missing_envpool_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(compiled, "find_spec", lambda n: None if n == "envpool" else real(n))
    lander = settings("LunarLander-v3", overrides=["environment.implementation=envpool"])
    assert choose_engine(lander, "auto") == "messages"
    twin = settings("LunarLander-v3", overrides=["environment.implementation=twin"])
    assert choose_engine(twin, "auto") == "compiled"
    with pytest.raises(MissingExtra, match=r"fedhql\[envpool\]"):
        choose_engine(lander, "compiled")


def test_a_missing_cryptography_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_engine, "find_spec", lambda name: None)
    assert choose_engine(settings(), "messages") == "messages"
    with pytest.raises(MissingExtra, match=r"federation.secure_aggregation .*fedhql\[remote\]"):
        choose_engine(SECURE, "messages")


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"engine = 'steam': allowed: auto, compiled, messages"):
        choose_engine(settings(), "steam")


def test_another_backbone_keeps_the_settings() -> None:
    theirs = with_backbone(settings(), "sb3")
    assert [agent.kind for agent in theirs.agents] == ["sb3-dqn"] * 2
    first = theirs.agents[0].options
    assert (first["hidden"], first["learning_rate"], first["optimizer"]) == ([8], 0.02, "Adam")
    assert "double" not in first
    assert with_backbone(theirs, "dqn") == settings()
    assert with_backbone(settings(), "dqn") == settings()
    mixed = settings(overrides=["agents.2.kind=tabular"])
    assert with_backbone(mixed, "sb3").agents[1] == mixed.agents[1]


@pytest.mark.parametrize(
    ("backbone", "override", "message"),
    [
        ("sb3", "agents.1.double=true", r"agents.1.double: 'sb3-dqn' has no such setting"),
        ("sb3", "agents.2.exploration=ucb", r"agents.2.exploration: 'sb3-dqn' has no such"),
        ("keras", "agents.1.double=true", r"backbone = 'keras': allowed: dqn, sb3"),
    ],
)
def test_a_setting_that_the_other_backbone_lacks_is_refused(
    backbone: str, override: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        with_backbone(settings(overrides=[override]), backbone)


def test_a_value_that_our_dqn_lacks_is_refused() -> None:
    theirs = settings(overrides=["agents.kind=sb3-dqn", "agents.2.optimizer=RAdam"])
    with pytest.raises(SettingsError, match=r"agents.2.optimizer: 'RAdam' is wrong; allowed: 'ad"):
        with_backbone(theirs, "dqn")
    silu = settings(overrides=["agents.kind=sb3-dqn", "agents.1.activation=silu"])
    with pytest.raises(SettingsError, match=r"agents.1.activation: 'silu' is wrong"):
        with_backbone(silu, "dqn")


def test_the_compiled_engine_needs_no_box2d_for_lunar_lander(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*_: Any) -> None:
        raise MissingExtra.named("box2d", "environment 'LunarLander-v3'")

    monkeypatch.setattr(build, "make_environment", missing)
    lander = settings("LunarLander-v3", overrides=["environment.implementation=twin"])
    assert CompiledEngine().try_out(lander, agents_here).observation_size == 8

"""Read, check and compare experiment files."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from fedhql.agents.kinds import KINDS, backbones, find_kind
from fedhql.errors import SettingsError
from fedhql.settings.contradictions import contradiction, wrong_for
from fedhql.settings.explain import explain
from fedhql.settings.overrides import Overrides, as_mapping, set_value
from fedhql.settings.sections import AgentSettings, ExperimentSettings, TaskSettings

Settings = TypeVar("Settings", bound=TaskSettings)
# What a file is, by the section that only such a file has.
FILES = {
    "agents": "this is an experiment's file: fedhql run runs it",
    "service": "this is a server's file: fedhql serve runs it",
}


def read_settings(text: str, overrides: Overrides = ()) -> ExperimentSettings:
    """Parse and validate an experiment file, with overrides on top."""
    settings = parse(text, overrides, ExperimentSettings)
    if not settings.agents:
        raise SettingsError("agents: empty; a federation needs at least one [[agents]]")
    if wrong := wrong_for(settings):
        raise SettingsError(wrong)
    agents = tuple(_resolved(n, agent) for n, agent in enumerate(settings.agents, start=1))
    return settings.model_copy(update={"agents": agents})


def parse(text: str, overrides: Overrides, model: type[Settings]) -> Settings:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"not a TOML file: {error}") from error
    found = [section for section in FILES if section in content]
    for key, value in as_mapping(overrides).items():
        set_value(content, key, value)
    try:
        settings = model.model_validate(content)
    except ValidationError as error:
        if len(found) == 1 and found[0] not in model.model_fields:
            raise SettingsError(FILES[found[0]]) from error
        raise SettingsError(explain(error, model)) from error
    if wrong := contradiction(settings.federation):
        raise SettingsError(wrong)
    return settings


def read_settings_file(path: Path, overrides: Overrides = ()) -> ExperimentSettings:
    return read_file(path, overrides, read_settings)


def read_file(
    path: Path, overrides: Overrides, read: Callable[[str, Overrides], Settings]
) -> Settings:
    try:
        return read(path.read_text(encoding="utf-8"), overrides)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def with_backbone(settings: ExperimentSettings, backbone: str) -> ExperimentSettings:
    """Return the settings with every DQN agent as ours (dqn) or as stable-baselines3's (sb3).

    Raise SettingsError if an agent has a setting that the other backbone lacks.
    """
    kinds = backbones()
    if backbone not in kinds:
        raise SettingsError(f"backbone = {backbone!r}: allowed: {', '.join(kinds)}")
    kind, agents = kinds[backbone], []
    for number, agent in enumerate(settings.agents, start=1):
        if agent.kind in kinds.values() and agent.kind != kind:
            other = KINDS[kind].settings.model_fields
            defaults = KINDS[agent.kind].settings().model_dump(mode="json")
            lost = {k: v for k, v in agent.options.items() if k not in other}
            if unknown := [key for key, value in lost.items() if value != defaults[key]]:
                raise SettingsError(f"agents.{number}.{unknown[0]}: {kind!r} has no such setting")
            kept = {key: value for key, value in agent.options.items() if key in other}
            agent = _resolved(number, _with_options(agent, kind, kept))
        agents.append(agent)
    return settings.model_copy(update={"agents": tuple(agents)})


def differing_keys(ours: TaskSettings, theirs: TaskSettings) -> list[str]:
    """Return the settings that differ, as dotted keys with both values. Ignore resources."""
    resources: Any = {"agents": {"__all__": {"resources"}}}
    a, b = (_flat(each.model_dump(exclude=resources)) for each in (ours, theirs))
    return [
        f"{key} is {a.get(key)!r} here and {b.get(key)!r} there"
        for key in dict.fromkeys([*a, *b])
        if repr(a.get(key)) != repr(b.get(key))  # as text, a NaN equals itself
    ]


def _resolved(number: int, agent: AgentSettings) -> AgentSettings:
    """Return the agent with its kind's defaults. Raise SettingsError, which names a wrong key."""
    try:
        kind = find_kind(agent.kind)
    except SettingsError as error:
        raise SettingsError(f"agents.{number}.kind: {error}") from error
    if kind is None:
        return agent
    try:
        options = kind.settings.model_validate(agent.options)
    except ValidationError as error:
        raise SettingsError(explain(error, kind.settings, f"agents.{number}.")) from error
    resolved = options.model_dump(mode="json")
    return _with_options(agent, agent.kind, resolved)


def _with_options(agent: AgentSettings, kind: str, options: Mapping[str, Any]) -> AgentSettings:
    return AgentSettings(kind=kind, name=agent.name, resources=agent.resources, **options)


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Sequence) and value and isinstance(value[0], Mapping):
            value = {str(n): row for n, row in enumerate(value, start=1)}
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat

"""Apply overrides such as `federation.exploration=3` to the content of an experiment file."""

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from fedhql.errors import SettingsError

# As the command line writes them, "federation.exploration=3"; or {"federation.exploration": 3}.
Overrides = Sequence[str] | Mapping[str, Any]


def apply_override(content: dict[str, Any], override: str) -> None:
    """Set one value in `content`, such as `federation.exploration=3`.

    `agents.3.hidden=[8]` sets a value of agent3, and `agents.hidden=[8]` of every agent.
    """
    set_value(content, *parse_override(override))


def parse_override(override: str) -> tuple[str, Any]:
    """Return the key and the value of `section.key=value`."""
    key, equals, text = override.partition("=")
    if not equals:
        raise SettingsError(f"setting {override!r}: write section.key=value")
    return key.strip(), toml_value(text.strip())


def as_mapping(overrides: Overrides) -> dict[str, Any]:
    """Return overrides by key. The last one of a key counts, in its place."""
    pairs = overrides.items() if isinstance(overrides, Mapping) else map(parse_override, overrides)
    found: dict[str, Any] = {}
    for key, value in pairs:
        found.pop(key, None)
        found[key] = value
    return found


def set_value(content: dict[str, Any], key: str, value: Any) -> None:
    """Set the value of a dotted key, or all values of a section that is given as a mapping."""
    path = key.split(".")
    if len(path) == 1:
        if not isinstance(value, Mapping):
            content[key] = value
            return
        for name, inside in value.items():
            set_value(content, f"{key}.{name}", inside)
        return
    if path[0] == "agents":
        agents = content.get("agents", [])
        if not isinstance(agents, list):
            raise SettingsError("agents: write [[agents]], with two brackets, once for each agent")
        if path[1].isdigit():
            if not 1 <= int(path[1]) <= len(agents) or len(path) < 3:
                raise SettingsError(
                    f"setting {key}: write agents.N.key=value, N from 1 to {len(agents)}"
                )
            agents, path = [agents[int(path[1]) - 1]], path[1:]
        for agent in agents:
            _put(agent, path[1:], value)
    else:
        _put(content, path, value)


def _put(table: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise SettingsError(f"setting {name} is a value, not a section")
    table[path[-1]] = value


def toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a bare word is a string

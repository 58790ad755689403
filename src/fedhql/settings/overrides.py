"""Apply `section.key=value` overrides from the command line to the content of a file."""

import tomllib
from collections.abc import Sequence
from typing import Any

from fedhql.errors import SettingsError


def apply_override(content: dict[str, Any], override: str) -> None:
    """Set one value in `content`, such as `federation.exploration=3`.

    `agents.3.hidden=[8]` sets a value of agent3, and `agents.hidden=[8]` of every agent.
    """
    key, equals, text = override.partition("=")
    path = key.strip().split(".")
    if not equals or len(path) < 2:
        raise SettingsError(f"--set {override!r}: write section.key=value")
    value = toml_value(text.strip())
    if path[0] == "agents":
        agents = content.get("agents", [])
        if not isinstance(agents, list):
            raise SettingsError("agents: write [[agents]], with two brackets, once for each agent")
        if path[1].isdigit():
            if not 1 <= int(path[1]) <= len(agents) or len(path) < 3:
                raise SettingsError(
                    f"--set {override!r}: write agents.N.key=value, N from 1 to {len(agents)}"
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
            raise SettingsError(f"--set: {name} is a value, not a section")
    table[path[-1]] = value


def toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a bare word is a string

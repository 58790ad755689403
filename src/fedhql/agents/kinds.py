"""The kinds of agents: one record for each built-in kind, and users' own classes.

To add a kind: write its settings class, and a module with `build(settings, task)` (and
`load_policy(directory, space)`, if its agents export a policy), and add one `AgentKind` here.
Settings files, the command line, the choice of an engine, error texts and the tests derive from the
record. This module imports no framework: a kind's module is loaded when an agent is built.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from gymnasium import Space
from pydantic import BaseModel

from fedhql.acting import PolicyFunction
from fedhql.agents.dqn.config import DqnConfig
from fedhql.agents.kind_settings import DqnSettings, TabularSettings
from fedhql.agents.own_class import build_own_agent
from fedhql.agents.sb3.settings import (
    Sb3A2cSettings,
    Sb3DqnSettings,
    Sb3PpoSettings,
    Sb3QrdqnSettings,
)
from fedhql.agents.task import AgentTask
from fedhql.contract import BlackBoxAgent
from fedhql.errors import AgentRefused, MissingExtra, SettingsError
from fedhql.plugins import did_you_mean, is_plugin


@dataclass(frozen=True)
class AgentKind:
    """The record of one kind of agent."""

    settings: type[BaseModel]
    module: str
    loads: tuple[str, ...] = ()  # what its first agent also loads
    exports_policy: bool = False  # if true, the module has `load_policy`
    extra: str | None = None  # the optional extra that installs `packages`
    packages: tuple[str, ...] = ()
    backbone: str | None = None  # the name of this DQN for --backbone
    # Settings -> config for the compiled engine; None: only the message engine runs this kind.
    compiled: Callable[[Any], DqnConfig] | None = None


# Every agent of stable-baselines3 and sb3-contrib.
_SB3: Mapping[str, Any] = {
    "loads": ("torch._dynamo",),  # by the first optimiser; it takes longer than torch itself
    "exports_policy": True,
    "extra": "sb3",
    "packages": ("torch", "stable_baselines3", "sb3_contrib"),
}
KINDS: Mapping[str, AgentKind] = {
    "dqn": AgentKind(
        DqnSettings,
        "fedhql.agents.dqn.agent",
        exports_policy=True,
        backbone="dqn",
        compiled=DqnSettings.config,
    ),
    "sb3-dqn": AgentKind(
        Sb3DqnSettings,
        "fedhql.agents.sb3.dqn",
        backbone="sb3",
        **_SB3,
    ),
    "sb3-qrdqn": AgentKind(Sb3QrdqnSettings, "fedhql.agents.sb3.qrdqn", **_SB3),
    "sb3-ppo": AgentKind(Sb3PpoSettings, "fedhql.agents.sb3.ppo", **_SB3),
    "sb3-a2c": AgentKind(Sb3A2cSettings, "fedhql.agents.sb3.a2c", **_SB3),
    "tabular": AgentKind(TabularSettings, "fedhql.agents.tabular", exports_policy=True),
}


def compiled_kinds() -> list[str]:
    """Return the kinds that the compiled engine runs."""
    return [name for name, kind in KINDS.items() if kind.compiled is not None]


def backbones() -> dict[str, str]:
    """Return the kind that each choice of --backbone stands for."""
    return {kind.backbone: name for name, kind in KINDS.items() if kind.backbone is not None}


def find_kind(name: str) -> AgentKind | None:
    """Return the record of a kind; None for a user's own class. Raise SettingsError otherwise."""
    if name in KINDS:
        return KINDS[name]
    if is_plugin(name):
        return None
    module = name.removesuffix(".py").strip(":") or "module"
    hint = did_you_mean(name, KINDS) or f"for a class of your own, write {module}:Class; "
    raise SettingsError(
        f"unknown kind {name!r}; {hint}allowed: {', '.join(KINDS)}, package.module:Class"
    )


def build_agent(
    kind: str,
    options: Mapping[str, Any],
    task: AgentTask,
    make: Callable[..., BlackBoxAgent] | None = None,
) -> BlackBoxAgent:
    """Build an agent for `task`: of a built-in kind, or of a user's own class.

    `make` is the user's class, if `kind` only describes it and cannot be imported.
    """
    if make is None and (known := find_kind(kind)) is not None:
        return _module(kind).build(known.settings(**options), task)
    return build_own_agent(kind, options, task, make)


def load_policy(kind: str, directory: Path, space: Space[Any]) -> PolicyFunction | None:
    """Return the policy of an exported agent; None for a kind that exports no policy.

    Raise AgentRefused if `directory` does not hold what an agent of this kind exports.
    """
    known = find_kind(kind)
    if known is None or not known.exports_policy:
        return None
    module = _module(kind)
    try:
        return module.load_policy(directory, space)
    except OSError as error:
        raise AgentRefused(
            f"{directory} holds no policy of an agent of kind {kind!r}: {error}"
        ) from error


def _module(kind: str) -> Any:
    known = KINDS[kind]
    try:
        return import_module(known.module)
    except ModuleNotFoundError as error:
        if known.extra is None or (error.name or "").split(".")[0] not in known.packages:
            raise
        raise MissingExtra.named(known.extra, f"kind = {kind!r}") from error

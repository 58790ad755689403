"""Agents by name: the kinds that ship with fedhql, and any class as "package.module:Class"."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gymnasium import Space
from pydantic import BaseModel

from fedhql.agents.settings import DqnSettings, Sb3DqnSettings, TabularSettings
from fedhql.contract import BlackBoxAgent, States, Values
from fedhql.environments.make import Environment
from fedhql.errors import AgentRefused, MissingExtra, SettingsError

if TYPE_CHECKING:  # the command line reads settings, and need not load jax for that
    from fedhql.environments.twins import Twin

KINDS: Mapping[str, type[BaseModel]] = {
    "dqn": DqnSettings,
    "sb3-dqn": Sb3DqnSettings,
    "tabular": TabularSettings,
}


def settings_class(kind: str) -> type[BaseModel] | None:
    """What validates this kind's settings; None for a class of the user's own."""
    if kind in KINDS:
        return KINDS[kind]
    module, _, name = kind.partition(":")
    if module and name:
        return None
    raise SettingsError(f"unknown kind {kind!r}; allowed: {', '.join(KINDS)}, package.module:Class")


def build_agent(
    kind: str,
    options: Mapping[str, Any],
    make_environment: Callable[[], Environment],
    *,
    twin: "Twin | None",
    discount: float,
    budget_env_steps: int,
    seed: int,
) -> BlackBoxAgent:
    """A kind of ours gets an environment; a class of the user's, its settings and a seed."""
    match kind:
        case "dqn":
            from fedhql.agents.dqn.agent import DqnAgent

            return DqnAgent(
                DqnSettings(**options).config(),
                make_environment(),
                twin,
                discount=discount,
                budget_env_steps=budget_env_steps,
                seed=seed,
            )
        case "tabular":
            from fedhql.agents.tabular import TabularAgent

            return TabularAgent(
                TabularSettings(**options), make_environment(), discount=discount, seed=seed
            )
        case "sb3-dqn":
            try:
                from fedhql.agents.sb3 import Sb3DqnAgent
            except ModuleNotFoundError as error:
                if (error.name or "").split(".")[0] not in ("torch", "stable_baselines3"):
                    raise
                raise MissingExtra.named("sb3", "kind = 'sb3-dqn'") from error
            return Sb3DqnAgent(
                Sb3DqnSettings(**options),
                make_environment(),
                discount=discount,
                budget_env_steps=budget_env_steps,
                seed=seed,
            )
    users_class = import_class(kind)
    try:
        inspect.signature(users_class).bind(seed=seed, **options)
    except TypeError as error:
        raise AgentRefused(
            f"kind = {kind!r} is built with its settings and a seed as keywords: {error}"
        ) from error
    agent: BlackBoxAgent = users_class(seed=seed, **options)
    return agent


def load_policy(kind: str, directory: Path, space: Space[Any]) -> Callable[[States], Values] | None:
    """q_values of an agent of ours from what it exported; None for a kind that exports nothing."""
    match kind:
        case "dqn":
            from fedhql.agents.dqn.agent import load_policy as load_dqn
            from fedhql.agents.dqn.observations import Encoder

            of_encoded, encoder = load_dqn(directory), Encoder(space)
            return lambda states: of_encoded(encoder.batch(states))
        case "sb3-dqn":
            from fedhql.agents.sb3 import load_policy as load_sb3

            return load_sb3(directory)
    return None


def import_class(path: str) -> Callable[..., Any]:
    """The class that "package.module:Class" names."""
    module_name, _, class_name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the user's module exists; what is missing is something it imports
        raise AgentRefused(
            f"kind = {path!r}: no module {module_name!r} in {Path.cwd()} or on the Python path"
        ) from error
    try:
        found: Callable[..., Any] = getattr(module, class_name)
    except AttributeError as error:
        raise AgentRefused(f"kind = {path!r}: {module_name} has no {class_name!r}") from error
    return found

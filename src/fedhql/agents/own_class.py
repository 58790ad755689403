"""Build an agent of a user's own class, `kind = "package.module:Class"`."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import find_highest_version, parse_env_id

from fedhql.agents.task import AgentTask
from fedhql.contract import BlackBoxAgent
from fedhql.errors import AgentRefused
from fedhql.plugins import did_you_mean, import_plugin

FACTS = ("env_id", "discount", "budget_env_steps")  # of a task, for a class that takes them


def build_own_agent(
    kind: str,
    options: Mapping[str, Any],
    task: AgentTask,
    make: Callable[..., BlackBoxAgent] | None = None,
) -> BlackBoxAgent:
    """Build the agent from its settings, a seed and those facts of the task that it takes.

    `make` is the class, if `kind` only describes it and cannot be imported. Raise AgentRefused if
    the agent cannot be built so, or says that it has another environment.
    """
    own_class, keywords = find_own_class(kind, options, task, make)
    agent = own_class(seed=task.seed, **keywords)
    require_environment(kind, agent, task.env_id)
    return agent


def find_own_class(
    kind: str,
    options: Mapping[str, Any],
    task: AgentTask | None = None,
    make: Callable[..., BlackBoxAgent] | None = None,
) -> tuple[Callable[..., BlackBoxAgent], dict[str, Any]]:
    """Return the class and its keywords: its settings, and those facts of the task that it takes.

    Without a task, the facts are None: the keywords can only be checked. Raise AgentRefused if the
    class cannot be imported, or does not take the keywords and a seed.
    """
    own_class = make or import_plugin("kind", kind, AgentRefused, _looks_like_an_agent)
    try:
        signature = inspect.signature(own_class)
    except TypeError as error:
        raise AgentRefused(f"kind = {kind!r} is no class: {error}") from error
    try:
        taken = [name for name in FACTS if name in signature.parameters]
        keywords = {name: getattr(task, name, None) for name in taken} | dict(options)
        signature.bind(seed=None, **keywords)
    except TypeError as error:
        known = list(signature.parameters)
        unknown = next((name for name in options if name not in known), "")
        raise AgentRefused(
            f"kind = {kind!r} is built with its settings and a seed as keywords: {error}; "
            f"{did_you_mean(unknown, known)}its constructor takes {', '.join(known) or 'nothing'}"
        ) from error
    return own_class, keywords


def _looks_like_an_agent(found: Any) -> bool:
    return inspect.isclass(found) and issubclass(found, BlackBoxAgent)


def require_environment(kind: str, agent: BlackBoxAgent, wanted: str) -> None:
    """Raise AgentRefused if the agent says that it has another environment."""
    found = getattr(agent, "env_id", None)
    if isinstance(found, str) and not same_environment(found, wanted):
        raise AgentRefused(
            f"kind = {kind!r} has env_id = {found!r}, but the environment is {wanted!r}; take "
            "env_id as a keyword of the constructor, and leave it out of the agent's settings"
        )


def declared_environment(agent: BlackBoxAgent) -> str | None:
    """Return the agent's `env_id`, or the id of the Gymnasium environment in `agent.env`."""
    spec = getattr(getattr(agent, "env", None), "spec", None)
    found = getattr(agent, "env_id", None) or getattr(spec, "id", None)
    return None if found is None else str(found)


def same_environment(found: str, wanted: str) -> bool:
    """Return whether Gymnasium makes the same environment of both ids."""
    return _resolved(found) == _resolved(wanted)


def _resolved(env_id: str) -> str:
    """Return the id without a module and, as gymnasium.make does, with its highest version."""
    registered = env_id.rpartition(":")[2]
    try:
        namespace, name, version = parse_env_id(registered)
    except gymnasium.error.Error:  # no id of Gymnasium
        return registered
    highest = find_highest_version(namespace, name) if version is None else None
    return registered if highest is None else f"{registered}-v{highest}"

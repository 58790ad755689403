"""Build the agent that a member runs, from its owner's options."""

import json
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from secrets import randbits
from typing import TYPE_CHECKING, Any

import numpy as np
import tomli_w
from pydantic import ValidationError

from fedhql.agents.kinds import build_agent, find_kind
from fedhql.agents.own_class import find_own_class
from fedhql.agents.task import AgentTask
from fedhql.contract import BlackBoxAgent
from fedhql.engines.jax_setup import prepare_jax
from fedhql.environments.compiled import find_twin
from fedhql.environments.make import Environment, action_count, make_environment
from fedhql.errors import AgentRefused, SettingsError, SpacesDiffer
from fedhql.remote.member.kept_agent import saving_in
from fedhql.settings.explain import explain
from fedhql.settings.overrides import toml_value
from fedhql.storage.files import write_atomically
from fedhql.storage.run_directory import RunDirectory

if TYPE_CHECKING:
    from fedhql.remote.wire_pb2 import Task


def agent_builder(
    name: str,
    home: Path,
    kind: str,
    overrides: Sequence[str],
    seed: int,
    environment: str | None,
) -> "Callable[[Task], BlackBoxAgent]":
    """Return a function that builds the agent for a task. Raise if the settings are wrong.

    The function also writes the member as an experiment into its home: `load_policy`, `play` and
    `export` build the agent from it.
    """
    prepare_jax(shares_device=True)  # before the owner's module, which may use JAX, is imported
    options = _options(kind, overrides)

    def build(task: "Task") -> BlackBoxAgent:
        named = environment or task.environment
        # The server's options are not for an environment that the owner chose.
        env_options = {} if environment else {k: json.loads(v) for k, v in task.options.items()}
        agent = _build(kind, options, seed, environment, env_options, task)
        said = {key: value for key, value in options.items() if value is not None}
        experiment = {
            "environment": {"id": named, "discount": task.discount, "options": env_options},
            "budget": {"env_steps_per_agent": task.env_steps_per_member},
            "agents": [{**said, "kind": kind, "name": name}],
        }
        with saving_in(home):
            write_atomically(RunDirectory(home).settings, tomli_w.dumps(experiment))
        return agent

    return build


def own_seed(home: Path, given: int | None) -> int:
    """Return the seed that `home` keeps, or keep the given or a random one there.

    Raise SettingsError if `home` keeps another seed than the given one.
    """
    path = home / "seed.json"
    if path.exists():
        kept = int(json.loads(path.read_text()))
        if given not in (None, kept):
            raise SettingsError(f"--seed {given}: {home} holds an agent with seed {kept}")
        return kept
    seed = randbits(31) if given is None else given
    write_atomically(path, f"{seed}\n")
    return seed


def _options(kind: str, overrides: Sequence[str]) -> dict[str, Any]:
    given = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise SettingsError(f"setting {override!r}: write key=value")
        given[key.strip()] = toml_value(text.strip())
    if (known := find_kind(kind)) is None:
        find_own_class(kind, given)  # refused now, and not only after a server has answered
        return given
    try:
        return known.settings.model_validate(given).model_dump(mode="json")
    except ValidationError as error:
        raise SettingsError(explain(error, known.settings, "setting ")) from error


def _build(
    kind: str,
    options: dict[str, Any],
    seed: int,
    environment: str | None,
    env_options: dict[str, Any],
    task: "Task",
) -> BlackBoxAgent:
    named = environment or task.environment
    if environment is None and ":" in task.environment:
        # Gymnasium imports the module before the colon, and a server must not choose our code.
        raise AgentRefused(
            f"the federation's environment is {task.environment!r}, which imports a "
            f"module; allow it with --environment {shlex.quote(task.environment)}"
        )
    make = partial(make_environment, named, env_options)
    _require_same_spaces(make(), task)
    return build_agent(
        kind,
        options,
        AgentTask(
            named,
            make,
            partial(find_twin, named, env_options),
            discount=task.discount,
            budget_env_steps=task.env_steps_per_member,
            seed=seed,
        ),
    )


def _require_same_spaces(env: Environment, task: "Task") -> None:
    space = env.observation_space
    ours = (np.dtype(space.dtype).name, tuple(space.shape or ()), action_count(env))
    theirs = (task.state_dtype, tuple(task.state_shape), task.actions)
    env.close()
    if ours != theirs:
        raise SpacesDiffer(
            f"the environment's states and actions are {ours} (dtype, shape, actions), but "
            f"the federation's are {theirs}"
        )

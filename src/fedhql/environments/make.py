"""Make any Gymnasium environment with a discrete action space, by its id."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation, TransformAction

from fedhql.errors import EnvironmentRefused, MissingExtra

Environment = gym.Env[Any, Any]


def make_environment(env_id: str, options: Mapping[str, Any] | None = None) -> Environment:
    """Return an environment with actions 0..A-1 and observations that are arrays.

    Structured observations (Dict, Tuple, ...) are flattened, because a batch of states must be one
    array. Raise EnvironmentRefused or MissingExtra if there is no such environment.
    """
    try:
        # The passive checker costs a third of a CartPole step and checks every copy again.
        env: Environment = gym.make(env_id, disable_env_checker=True, **(options or {}))
    except Exception as error:  # a constructor may raise anything
        if isinstance(error, gym.error.DependencyNotInstalled) and "box2d" in str(error).lower():
            raise MissingExtra.named("box2d", f"environment {env_id!r}") from error
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, gym.error.NameNotFound) and ":" not in env_id:
            reason += (
                f" If a module of yours registers it, write 'module:{env_id}'. Worker processes do "
                "not know what a script or notebook registers; in Python, jobs=0 uses none"
            )
        raise EnvironmentRefused(f"environment.id = {env_id!r}: {reason}") from error
    return _with_array_observations(_with_plain_actions(env_id, env))


def action_count(env: Environment) -> int:
    assert isinstance(env.action_space, spaces.Discrete)  # make_environment requires it
    return int(env.action_space.n)


def first_observation(space: spaces.Space[Any]) -> int | None:
    """Return the lowest observation of a Discrete space; None if observations are arrays."""
    return int(space.start) if isinstance(space, spaces.Discrete) else None


def _with_plain_actions(env_id: str, env: Environment) -> Environment:
    space = env.action_space
    if not isinstance(space, spaces.Discrete):
        raise EnvironmentRefused(
            f"environment.id = {env_id!r} has the action space {space}: FedHQL compares the "
            "agents' values action by action and takes the argmax, so the actions must be a "
            "finite list (gymnasium.spaces.Discrete); discretise them in a wrapper"
        )
    start = int(space.start)
    if start == 0:
        return env
    return TransformAction(env, lambda action: action + start, spaces.Discrete(int(space.n)))


def _with_array_observations(env: Environment) -> Environment:
    if isinstance(env.observation_space, spaces.Box | spaces.Discrete):
        return env
    return FlattenObservation(env)

"""Build a cohort, environments and a server from settings."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from gymnasium import spaces

from fedhql.contract import BlackBoxAgent, States
from fedhql.engines.build_agent import build_agents, compiled_environment
from fedhql.engines.owned_cohort import LocalOwnedCohort
from fedhql.environments.batch import EnvironmentBatch
from fedhql.environments.compiled import find_twin
from fedhql.environments.make import action_count, make_environment
from fedhql.errors import EnvironmentRefused
from fedhql.federation import (
    Cohort,
    FederationServer,
    PlainCohort,
    ServerEnvironments,
    rule_named,
)
from fedhql.federation.replay import Replay
from fedhql.plugins import is_plugin
from fedhql.settings.sections import ExperimentSettings, FederationSettings, TaskSettings

if TYPE_CHECKING:
    from fedhql.environments.twin_batch import TwinBatch


def build_cohort(
    settings: ExperimentSettings,
    agents: Sequence[BlackBoxAgent],
    on_self_learned: Callable[[int], None] = lambda env_steps: None,
    borrowed: Collection[int] = (),
) -> LocalOwnedCohort:
    """Return the agents as a cohort. Query each agent once, to report a wrong answer early."""
    states, actions = first_states(settings)
    cohort = LocalOwnedCohort(
        agents,
        actions,
        names=settings.agent_names,
        on_self_learned=on_self_learned,
        borrowed=borrowed,
    )
    cohort.act_each([states] * len(agents))
    return cohort


def gather_here(
    settings: ExperimentSettings,
    seed: int,
    on_self_learned: Callable[[int], None] = lambda env_steps: None,
) -> LocalOwnedCohort:
    """Build a cell's agents as objects in this process."""
    return build_cohort(settings, build_agents(settings, seed), on_self_learned)


def as_asked(cohort: PlainCohort, federation: FederationSettings) -> Cohort:
    """Return the cohort as its server queries it: with secure aggregation, if that is on."""
    if not federation.secure_aggregation:
        return cohort
    from fedhql.secure.secure_cohort import SecureCohort  # needs an optional package

    return SecureCohort(cohort, value_bound=federation.secure_value_bound)


def first_states(settings: TaskSettings) -> tuple[States, int]:
    """Return two states to try agents with, and the number of actions."""
    env = make_environment(settings.environment.id, settings.environment.options)
    states = np.array([env.reset(seed=s)[0] for s in (0, 1)], dtype=env.observation_space.dtype)
    actions = action_count(env)
    env.close()
    return states, actions


def build_batch(settings: TaskSettings, size: int) -> "EnvironmentBatch | TwinBatch":
    """Return environments for the server or for evaluation: twins, as in compiled runs, if any."""
    of = settings.environment
    if (twin := find_twin(of.id, of.options, of.implementation)) is not None:
        from fedhql.environments.twin_batch import TwinBatch  # it loads JAX

        require_same_spaces(settings)
        return TwinBatch(twin, size)
    return EnvironmentBatch(of.id, size, of.options)


def build_server(
    settings: TaskSettings,
    cohort: Cohort,
    environments: ServerEnvironments,
    cell: str = "",
    replay_file: Path | None = None,
) -> FederationServer:
    federation = settings.federation
    return FederationServer(
        cohort,
        environments,
        rule_named(federation.rule, federation.model_dump()),
        horizon_steps=federation.horizon_steps,
        learning_rate=federation.learning_rate,
        discount=settings.environment.discount,
        carry_over=federation.carry_over,
        all_actions=federation.all_actions,
        pessimism=federation.pessimism,
        random_actions=federation.random_actions,
        random_actions_env_steps=federation.random_actions_env_steps,
        auditions=federation.auditions,
        public=federation.public,
        replay=build_replay(federation, replay_file),
        cell=cell,
    )


def build_replay(federation: FederationSettings, file: Path | None) -> Replay | None:
    if not federation.replay_batch:
        return None
    return Replay(federation.replay_capacity, federation.replay_batch, federation.query_batch, file)


def require_same_spaces(settings: TaskSettings) -> int:
    """Return the size of an observation. Raise EnvironmentRefused if the twin's spaces differ.

    Tests compare our own twins with Gymnasium, so these also run where Box2D is not installed.
    """
    environment = settings.environment
    compiled = compiled_environment(environment)
    twin = None if compiled is None else compiled.twin
    if twin is not None and not is_plugin(environment.implementation):
        return twin.observation_size
    env = make_environment(environment.id, environment.options)
    gymnasiums = spaces.flatdim(env.observation_space), action_count(env)
    env.close()
    if twin is not None:
        twins = twin.observation_size, twin.action_count
        if twins != gymnasiums:
            raise EnvironmentRefused(
                f"environment.implementation = {environment.implementation!r} has {twins[0]} "
                f"numbers in an observation and {twins[1]} actions; {environment.id} has "
                f"{gymnasiums[0]} and {gymnasiums[1]}"
            )
    return gymnasiums[0]

"""From settings to the things that run: agents, a cohort, environments, a server."""

from collections.abc import Callable, Sequence

import numpy as np
from gymnasium import spaces

from fedhql.contract import BlackBoxAgent, States
from fedhql.engines.build_agent import build_agents
from fedhql.engines.owned_cohort import LocalOwnedCohort
from fedhql.environments.batch import EnvironmentBatch
from fedhql.environments.make import action_count, make_environment
from fedhql.environments.twin_batch import TwinBatch
from fedhql.environments.twins import Twin, twin_of
from fedhql.federation import Cohort, FederationServer, ServerEnvironments, rule_named
from fedhql.settings.sections import ExperimentSettings, FederationSettings, TaskSettings


def build_cohort(
    settings: ExperimentSettings,
    agents: Sequence[BlackBoxAgent],
    on_self_learned: Callable[[int], None] = lambda env_steps: None,
) -> LocalOwnedCohort:
    """The agents as a cohort, each asked once so that a wrong answer shows before any work."""
    states, actions = first_states(settings)
    cohort = LocalOwnedCohort(
        agents, actions, names=settings.agent_names, on_self_learned=on_self_learned
    )
    cohort.query(states)
    return cohort


def gather_here(
    settings: ExperimentSettings,
    seed: int,
    on_self_learned: Callable[[int], None] = lambda env_steps: None,
) -> LocalOwnedCohort:
    """A cell's agents as objects in this process."""
    return build_cohort(settings, build_agents(settings, seed), on_self_learned)


def as_asked(cohort: Cohort, federation: FederationSettings) -> Cohort:
    """The cohort as its server may ask it."""
    if not federation.secure_aggregation:
        return cohort
    from fedhql.secure.secure_cohort import SecureCohort  # it needs an optional package

    return SecureCohort(cohort, value_bound=federation.secure_value_bound)


def first_states(settings: TaskSettings) -> tuple[States, int]:
    """Two states that agents can be tried with, and the number of actions."""
    env = make_environment(settings.environment.id, settings.environment.options)
    states = np.array([env.reset(seed=s)[0] for s in (0, 1)], dtype=env.observation_space.dtype)
    actions = action_count(env)
    env.close()
    return states, actions


def build_batch(settings: TaskSettings, size: int) -> EnvironmentBatch | TwinBatch:
    """Environments for the server or for evaluation; twins where we have them, as compiled runs."""
    if (twin := _twin(settings)) is not None:
        return TwinBatch(twin, size)
    return EnvironmentBatch(settings.environment.id, size, settings.environment.options)


def build_server(
    settings: TaskSettings, cohort: Cohort, environments: ServerEnvironments
) -> FederationServer:
    federation = settings.federation
    return FederationServer(
        cohort,
        environments,
        rule_named(federation.rule, federation),
        horizon_steps=federation.horizon_steps,
        learning_rate=federation.learning_rate,
        discount=settings.environment.discount,
        carry_over=federation.carry_over,
        all_actions=federation.all_actions,
    )


def _twin(settings: TaskSettings) -> Twin | None:
    return twin_of(settings.environment.id, settings.environment.options)


def observation_size(settings: ExperimentSettings) -> int:
    env = make_environment(settings.environment.id, settings.environment.options)
    size = spaces.flatdim(env.observation_space)
    env.close()
    return size

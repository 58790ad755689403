"""From settings to the things that run: agents, a cohort, environments, a server."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from gymnasium import spaces

from fedhql.agents.catalog import build_agent
from fedhql.contract import BlackBoxAgent
from fedhql.environments.batch import EnvironmentBatch
from fedhql.environments.make import action_count, make_environment
from fedhql.environments.twin_batch import TwinBatch
from fedhql.environments.twins import Twin, twin_of
from fedhql.errors import AgentRefused
from fedhql.experiments.seeds import Stream, seeds_for
from fedhql.experiments.settings import ExperimentSettings, TaskSettings
from fedhql.federation import (
    Cohort,
    FederationServer,
    InProcessCohort,
    ServerEnvironments,
    rule_named,
)


def build_agents(settings: ExperimentSettings, seed: int) -> list[BlackBoxAgent]:
    """Every agent with an environment and a seed of its own, the same in every arm."""
    return [build_one_agent(settings, seed, n) for n in range(len(settings.agents))]


def build_one_agent(settings: ExperimentSettings, seed: int, n: int) -> BlackBoxAgent:
    agent = settings.agents[n]
    try:
        return build_agent(
            agent.kind,
            agent.options,
            partial(make_environment, settings.environment.id, settings.environment.options),
            twin=_twin(settings),
            discount=settings.environment.discount,
            budget_env_steps=settings.budget.env_steps_per_agent,
            seed=int(seeds_for(seed, Stream.AGENT, n, count=1)[0]),
        )
    except AgentRefused as error:
        raise AgentRefused(f"{settings.agent_names[n]}: {error}") from error
    except Exception as error:
        error.add_note(f"raised while {settings.agent_names[n]} ({agent.kind}) was built")
        raise


def build_cohort(
    settings: ExperimentSettings,
    agents: Sequence[BlackBoxAgent],
    on_self_learned: Callable[[int], None] = lambda env_steps: None,
) -> InProcessCohort:
    """The agents as a cohort, each asked once so that a wrong answer shows before any work."""
    env = make_environment(settings.environment.id, settings.environment.options)
    cohort = InProcessCohort(
        agents, action_count(env), names=settings.agent_names, on_self_learned=on_self_learned
    )
    states = np.array([env.reset(seed=s)[0] for s in (0, 1)], dtype=env.observation_space.dtype)
    cohort.query(states)
    env.close()
    return cohort


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


def try_out(settings: ExperimentSettings) -> None:
    """Raise whatever is wrong with the environment or an agent, before anything is written."""
    build_cohort(settings, build_agents(settings, seed=0)).close()

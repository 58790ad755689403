"""From settings to the things that run: seeds, agents, a cohort, a server."""

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedhql.agents import build_agent
from fedhql.contract import BlackBoxAgent
from fedhql.environments import action_count, make_environment
from fedhql.errors import AgentRefused
from fedhql.experiments.settings import ExperimentSettings
from fedhql.federation import Cohort, FederationServer, InProcessCohort, ServerEnvironments


class Stream(IntEnum):
    """What randomness is for. A stream is a function of (seed, stream, numbers): no state."""

    AGENT = 0
    SERVER = 1
    EVALUATION = 2


def seeds_for(seed: int, stream: Stream, *numbers: int, count: int) -> NDArray[np.uint32]:
    sequence = np.random.SeedSequence(seed, spawn_key=(stream, *numbers))
    return sequence.generate_state(count).astype(np.uint32)


def build_agents(settings: ExperimentSettings, seed: int) -> list[BlackBoxAgent]:
    """Every agent with an environment and a seed of its own, the same in every arm."""
    agents = []
    for n, agent in enumerate(settings.agents):
        try:
            built = build_agent(
                agent.kind,
                agent.options,
                partial(make_environment, settings.environment.id, settings.environment.options),
                discount=settings.environment.discount,
                budget_env_steps=settings.budget.env_steps_per_agent,
                seed=int(seeds_for(seed, Stream.AGENT, n, count=1)[0]),
            )
        except AgentRefused as error:
            raise AgentRefused(f"{settings.agent_names[n]}: {error}") from error
        except Exception as error:
            error.add_note(f"raised while {settings.agent_names[n]} ({agent.kind}) was built")
            raise
        agents.append(built)
    return agents


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


def build_server(
    settings: ExperimentSettings, cohort: Cohort, environments: ServerEnvironments
) -> FederationServer:
    federation = settings.federation
    return FederationServer(
        cohort,
        environments,
        federation.action_rule(),
        horizon_steps=federation.horizon_steps,
        learning_rate=federation.learning_rate,
        discount=settings.environment.discount,
    )


def try_out(settings: ExperimentSettings) -> None:
    """Raise whatever is wrong with the environment or an agent, before anything is written."""
    build_cohort(settings, build_agents(settings, seed=0)).close()

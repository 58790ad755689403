"""From settings to agents. What an agent's kind does not need is not loaded."""

from functools import partial
from typing import TYPE_CHECKING

from fedhql.agents.kinds import build_agent
from fedhql.contract import BlackBoxAgent
from fedhql.engines.seeds import Stream, seeds_for
from fedhql.environments.make import make_environment
from fedhql.errors import AgentRefused
from fedhql.settings.sections import ExperimentSettings

if TYPE_CHECKING:
    from fedhql.environments.twins import Twin


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
            twin=_twin(settings) if agent.kind == "dqn" else None,
            discount=settings.environment.discount,
            budget_env_steps=settings.budget.env_steps_per_agent,
            seed=int(seeds_for(seed, Stream.AGENT, n, count=1)[0]),
        )
    except AgentRefused as error:
        raise AgentRefused(f"{settings.agent_names[n]}: {error}") from error
    except Exception as error:
        error.add_note(f"raised while {settings.agent_names[n]} ({agent.kind}) was built")
        raise


def _twin(settings: ExperimentSettings) -> "Twin | None":
    """JAX takes a second to load, and a hundred megabytes."""
    from fedhql.environments.twins import twin_of

    return twin_of(settings.environment.id, settings.environment.options)

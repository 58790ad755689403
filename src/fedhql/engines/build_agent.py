"""Build agents from settings. A framework is loaded only when an agent's kind needs it."""

from collections.abc import Callable
from functools import partial

from fedhql.agents.dqn.config import DqnConfig
from fedhql.agents.kinds import KINDS, build_agent
from fedhql.agents.task import AgentTask
from fedhql.contract import BlackBoxAgent
from fedhql.engines.seeds import Stream, seeds_for
from fedhql.environments.compiled import CompiledEnvironment, find_compiled, find_twin
from fedhql.environments.make import make_environment
from fedhql.errors import AgentRefused
from fedhql.settings.sections import AgentSettings, EnvironmentSettings, ExperimentSettings


def build_agents(settings: ExperimentSettings, seed: int) -> list[BlackBoxAgent]:
    """Build every agent with its own environment and seed, which are the same in every arm.

    `settings` are those of the arm: agents may depend on the length of its phases.
    """
    return [build_one_agent(settings, seed, n) for n in range(len(settings.agents))]


def build_one_agent(
    settings: ExperimentSettings,
    seed: int,
    n: int,
    make: Callable[..., BlackBoxAgent] | None = None,
) -> BlackBoxAgent:
    """Build agent n by its kind; by `make`, if its kind cannot be imported."""
    agent, environment = settings.agents[n], settings.environment
    task = AgentTask(
        environment.id,
        partial(make_environment, environment.id, environment.options),
        partial(find_twin, environment.id, environment.options, environment.implementation),
        discount=environment.discount,
        budget_env_steps=settings.budget.env_steps_per_agent,
        phase_env_steps=phase_env_steps(settings),
        seed=int(seeds_for(seed, Stream.AGENT, n, count=1)[0]),
    )
    try:
        return build_agent(agent.kind, agent.options, task, make)
    except AgentRefused as error:
        raise AgentRefused(f"{settings.agent_names[n]}: {error}") from error
    except Exception as error:
        error.add_note(f"raised while {settings.agent_names[n]} ({agent.kind}) was built")
        raise


def phase_env_steps(settings: ExperimentSettings) -> int:
    """Return the env steps of a whole self-learning phase."""
    whole_budget = settings.budget.env_steps_per_agent
    return min(settings.federation.self_learning_env_steps, whole_budget)


def compiled_environment(environment: EnvironmentSettings) -> CompiledEnvironment | None:
    """Return the compiled environment; None if compiled programs cannot step it."""
    return find_compiled(environment.id, environment.options, environment.implementation)


def compiled_config(agent: AgentSettings) -> DqnConfig:
    """Return the agent's settings in the form of the compiled engine."""
    kind = KINDS[agent.kind]
    assert kind.compiled is not None  # the compiled engine refuses other kinds
    return kind.compiled(kind.settings(**agent.options))

"""The task that an agent is built for."""

from collections.abc import Callable
from dataclasses import dataclass

from fedhql.environments.make import Environment
from fedhql.environments.twins import Twin


@dataclass(frozen=True)
class AgentTask:
    """An environment, a discount, a budget, the length of a self-learning phase and a seed."""

    env_id: str
    make_environment: Callable[[], Environment]
    find_twin: Callable[[], Twin | None]  # of that environment
    discount: float
    budget_env_steps: int
    seed: int
    phase_env_steps: int | None = None  # None: the agent's owner does not know it

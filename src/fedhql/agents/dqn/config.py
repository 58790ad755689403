"""The settings of one DQN agent. This module imports no framework."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Keywords = tuple[tuple[str, Any], ...]  # an optimiser's keywords, hashable

# The DQN's optimisers, one line each. A factory takes a learning rate and keywords and returns an
# optax transformation; any such factory works, for example "optax:lion".
OPTIMISERS: Mapping[str, str] = {
    "adam": "fedhql.agents.dqn.optimisers:adam",
    "sgd": "fedhql.agents.dqn.optimisers:sgd",
    "rmsprop": "fedhql.agents.dqn.optimisers:rmsprop",
    "adamw": "fedhql.agents.dqn.optimisers:adamw",
    "nadam": "fedhql.agents.dqn.optimisers:nadam",
}

SILENT_UNITS = "train/silent_units"  # the diagnostics' tag
SILENT_AT_STATES = 256  # a unit counts as silent there if it is 0 at so many of the last states
MOST_SCALE = 10.0  # the largest factor of α̃ for large values (see `improvement_value_unit`)
# A unit is silent if it outputs 0 at this many states of each of the last broadcasts.
REMEMBERED_BROADCASTS = 64
STATES_OF_EACH = 16


@dataclass(frozen=True)
class DqnConfig:
    """One agent's settings, with stable-baselines3's names and, where the paper has none, defaults.

    `DqnSettings` defines what a user may write, with ranges; it takes its defaults from here.
    """

    hidden: tuple[int, ...] = (64, 64)
    activation: str = "relu"  # or tanh
    double: bool = False  # the online network chooses the next action (double DQN)

    optimizer: str = "adam"  # one of OPTIMISERS
    optimizer_kwargs: Keywords = ()
    learning_rate: float = 1e-4
    learning_starts: int = 50_000
    warm_up: str = "uniform"  # actions before learning starts; or policy: by the exploration rule
    buffer_size: int = 1_000_000
    batch_size: int = 32
    train_freq: int = 4
    gradient_steps: int = 1
    target_update_interval: int = 10_000
    tau: float = 1.0
    max_grad_norm: float = 10.0

    exploration: str = "epsilon-greedy"  # or boltzmann, ucb
    exploration_final_eps: float = 0.05
    exploration_initial_eps: float = 1.0
    exploration_annealing: str = "budget"  # ε falls once, over the budget; or phase: in each phase
    exploration_fraction: float = 0.0  # share of budget or phase over which ε falls; 0: constant
    temperature: float = 1.0  # of boltzmann
    confidence: float = 1.0  # of ucb

    improvement_steps: int = 64  # κ
    improvement_optimiser: str = "adam"  # one of OPTIMISERS; self-learning does not share its state
    improvement_learning_rate: float = 1e-3  # α̃
    improvement_value_unit: float = math.inf  # larger values increase the learning rate
    improvement_max_grad_norm: float = 10.0
    improvement_revives_units: bool = False  # reinitialise silent units in each round
    target_follows_improvement: bool = True

    def replay_capacity(self, budget_env_steps: int) -> int:
        """Return the size of the replay memory, which is at most the budget."""
        return min(self.buffer_size, budget_env_steps)


class DqnChoices(Protocol):
    """Settings that describe one agent."""

    def config(self) -> DqnConfig: ...

"""What makes one DQN agent differ from another, without any framework."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Keywords = tuple[tuple[str, Any], ...]  # of an optimiser, hashable

# The DQN's optimisers, one line each: the factory takes a learning rate and keywords. Any factory
# of an optax transformation will do, such as "optax:lion".
OPTIMISERS: Mapping[str, str] = {
    "adam": "fedhql.agents.dqn.optimisers:adam",
    "sgd": "fedhql.agents.dqn.optimisers:sgd",
    "rmsprop": "fedhql.agents.dqn.optimisers:rmsprop",
    "adamw": "fedhql.agents.dqn.optimisers:adamw",
    "nadam": "fedhql.agents.dqn.optimisers:nadam",
}

MOST_SCALE = 10.0  # of an improvement's step, by the size of the values
# A unit is silent that answers 0 to so many states of each of so many broadcasts.
REMEMBERED_BROADCASTS = 64
STATES_OF_EACH = 16


@dataclass(frozen=True)
class DqnConfig:
    """One agent, under stable-baselines3's names; where the paper is silent, with its defaults.

    What a user may write, with ranges, is `DqnSettings`, which takes its defaults from here.
    """

    hidden: tuple[int, ...] = (64, 64)
    activation: str = "relu"  # or tanh
    double: bool = False  # the online network chooses the next action (double DQN)

    optimizer: str = "adam"  # one of OPTIMISERS
    optimizer_kwargs: Keywords = ()
    learning_rate: float = 1e-4
    learning_starts: int = 50_000
    warm_up: str = "uniform"  # actions before learning starts; or policy: as afterwards
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
    exploration_fraction: float = 0.0  # of the budget, over which ε falls; 0: constant
    temperature: float = 1.0  # of boltzmann
    confidence: float = 1.0  # of ucb

    improvement_steps: int = 64  # κ
    improvement_optimiser: str = "adam"  # one of OPTIMISERS, with a state of its own
    improvement_learning_rate: float = 1e-3  # α̃
    improvement_value_unit: float = math.inf  # up to it values are learned with α̃
    improvement_max_grad_norm: float = 10.0
    improvement_revives_units: bool = False  # silent ones, before a round's first improvement
    target_follows_improvement: bool = True

    def replay_capacity(self, budget_env_steps: int) -> int:
        """Return the size of the replay memory; more than the budget could never be filled."""
        return min(self.buffer_size, budget_env_steps)


class DqnChoices(Protocol):
    """Settings that describe one agent."""

    def config(self) -> DqnConfig: ...

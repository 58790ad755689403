"""The settings of our own kinds of agents, and what they share with others. No framework here."""

from collections.abc import Collection
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, field_validator

from fedhql.agents.dqn.config import OPTIMISERS, DqnConfig


class KindSettings(BaseModel):
    """The base of the settings of every kind."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TabularSettings(KindSettings):
    """Watkins Q-learning on a table, for Discrete observations."""

    learning_rate: float = Field(0.1, gt=0, le=1)
    """The step size of Q-learning."""
    learning_rate_decay: float = Field(0.0, ge=0, le=1)
    """ω: the rate at the k-th visit of a pair is learning_rate · k^-ω; 0 keeps it constant."""
    initial_value: float = 0.0
    """The value of every action before it is learned."""

    exploration: Literal["epsilon-greedy", "boltzmann", "ucb"] = "epsilon-greedy"
    """How the agent explores while it learns by itself."""
    epsilon: float = Field(0.1, ge=0, le=1)
    """ε, the share of uniform actions of epsilon-greedy."""
    temperature: PositiveFloat = 1.0
    """The temperature of boltzmann."""
    confidence: PositiveFloat = 1.0
    """c, the factor of the bonus of ucb."""

    improvement_learning_rate: float = Field(0.5, gt=0, le=1)
    """α̃, the step of one improvement towards the mean target of a (state, action) pair."""
    improvement_steps: PositiveInt = 1
    """κ, the number of such steps."""


def known_optimizer(name: str, optimizers: Collection[str]) -> str:
    """Return the optimiser of this name. Raise ValueError if there is none.

    Accept any case, so that --backbone can switch between PyTorch's names and ours.
    """
    for known in optimizers:
        if name.lower() == known.lower():
            return known
    raise ValueError(f"{name!r} is wrong; allowed: {', '.join(map(repr, optimizers))}")


class CommonDqnSettings(KindSettings):
    """The settings that both DQNs share, under stable-baselines3's names."""

    optimizers: ClassVar[Collection[str]]

    hidden: tuple[PositiveInt, ...] = DqnConfig.hidden
    """The sizes of the hidden layers; an empty list gives a linear function."""

    optimizer: str
    """The optimiser of self-learning."""
    optimizer_kwargs: dict[str, bool | float | list[float]] = {}
    """Keywords of PyTorch's optimiser: momentum, betas, eps, weight_decay, ..."""
    learning_rate: PositiveFloat = DqnConfig.learning_rate
    """The learning rate of self-learning."""
    learning_starts: int = Field(DqnConfig.learning_starts, ge=0)
    """The env steps before the first gradient step."""
    warm_up: Literal["uniform", "policy"] = "uniform"
    """Actions before learning_starts: uniform, or by the exploration rule used afterwards."""
    buffer_size: PositiveInt = DqnConfig.buffer_size
    """The transitions in the replay buffer."""
    batch_size: PositiveInt = DqnConfig.batch_size
    """The transitions of one gradient step."""
    train_freq: PositiveInt = DqnConfig.train_freq
    """The agent trains every so many env steps."""
    gradient_steps: PositiveInt = DqnConfig.gradient_steps
    """The gradient steps each time the agent trains."""
    target_update_interval: PositiveInt = DqnConfig.target_update_interval
    """The env steps between two updates of the target network."""
    tau: float = Field(DqnConfig.tau, gt=0, le=1)
    """The share of the online network in an update of the target network; 1 copies it."""
    max_grad_norm: PositiveFloat = DqnConfig.max_grad_norm
    """The norm at which gradients of self-learning are clipped."""

    exploration_final_eps: float = Field(DqnConfig.exploration_final_eps, ge=0, le=1)
    """ε after annealing; it applies from learning_starts on, or always if warm_up = "policy"."""
    exploration_initial_eps: float = Field(DqnConfig.exploration_initial_eps, ge=0, le=1)
    """ε at the beginning of annealing."""
    exploration_fraction: float = Field(DqnConfig.exploration_fraction, ge=0, le=1)
    """Share of the budget over which ε falls to its final value; 0 keeps it there (the paper)."""
    exploration_annealing: Literal["budget", "phase"] = "budget"
    """Let ε fall once, over that share of the budget, or in each self-learning phase, over that
    share of the phase. "phase" is what repeated calls of stable-baselines3's `learn` do. An agent
    that joins over the network refuses it, because its server does not tell how long phases are."""

    improvement_steps: PositiveInt = DqnConfig.improvement_steps
    """κ, the gradient steps of one improvement."""
    improvement_optimiser: str
    """The optimiser of improvements; self-learning does not share its state."""
    improvement_learning_rate: PositiveFloat = DqnConfig.improvement_learning_rate
    """α̃, the learning rate of improvements."""
    improvement_value_unit: float = Field(
        DqnConfig.improvement_value_unit, gt=0, allow_inf_nan=True
    )
    """u: the learning rate is α̃ · clip(mean |target| / u, 1, 10); inf gives α̃, as in the paper."""
    improvement_max_grad_norm: PositiveFloat = DqnConfig.improvement_max_grad_norm
    """The norm at which gradients of improvements are clipped."""
    improvement_revives_units: bool = DqnConfig.improvement_revives_units
    """Reinitialise units that output 0 at all recently broadcast states; false in the paper."""
    target_follows_improvement: bool = DqnConfig.target_follows_improvement
    """Copy the improved network into the target network before self-learning resumes."""

    @field_validator("optimizer", "improvement_optimiser")
    @classmethod
    def _known_optimizer(cls, name: str) -> str:
        return known_optimizer(name, cls.optimizers)


_OPTIMISERS = ", ".join(map(repr, OPTIMISERS))


class DqnSettings(CommonDqnSettings):
    """fedhql's own DQN, in JAX."""

    optimizers = OPTIMISERS

    optimizer: str = Field(DqnConfig.optimizer, description=_OPTIMISERS)
    improvement_optimiser: str = Field(DqnConfig.improvement_optimiser, description=_OPTIMISERS)
    activation: Literal["relu", "tanh"] = "relu"
    """The activation of the hidden layers."""
    double: bool = DqnConfig.double
    """Double DQN: the online network chooses the next action, the target network values it."""

    exploration: Literal["epsilon-greedy", "boltzmann", "ucb"] = "epsilon-greedy"
    """How the agent explores while it learns by itself."""
    temperature: PositiveFloat = DqnConfig.temperature
    """The temperature of boltzmann."""
    confidence: PositiveFloat = DqnConfig.confidence
    """c, the factor of the bonus of ucb."""

    def config(self) -> DqnConfig:
        keywords = tuple(
            (name, tuple(value) if isinstance(value, list) else value)
            for name, value in sorted(self.optimizer_kwargs.items())
        )
        return DqnConfig(**self.model_dump() | {"optimizer_kwargs": keywords})

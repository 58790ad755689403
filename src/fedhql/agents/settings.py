"""What can be said about each kind of agent in an experiment file; needs no framework to read."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

from fedhql.agents.dqn.config import DqnConfig


class _AgentSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TabularSettings(_AgentSettings):
    """Watkins Q-learning on a table, for Discrete observations."""

    learning_rate: float = Field(0.1, gt=0, le=1)
    learning_rate_decay: float = Field(0.0, ge=0, le=1)
    """ω: the rate at a pair's k-th visit is learning_rate · k^-ω; 0 keeps it constant."""
    initial_value: float = 0.0

    exploration: Literal["epsilon-greedy", "boltzmann", "ucb"] = "epsilon-greedy"
    epsilon: float = Field(0.1, ge=0, le=1)
    temperature: PositiveFloat = 1.0
    confidence: PositiveFloat = 1.0

    improvement_learning_rate: float = Field(0.5, gt=0, le=1)
    """α̃, the step of one improvement towards the mean target of a (state, action) pair."""
    improvement_steps: PositiveInt = 1
    """κ"""


class _CommonDqnSettings(_AgentSettings):
    """What both DQNs know, under stable-baselines3's names."""

    hidden: tuple[PositiveInt, ...] = DqnConfig.hidden

    learning_rate: PositiveFloat = DqnConfig.learning_rate
    learning_starts: int = Field(DqnConfig.learning_starts, ge=0)
    buffer_size: PositiveInt = DqnConfig.buffer_size
    batch_size: PositiveInt = DqnConfig.batch_size
    train_freq: PositiveInt = DqnConfig.train_freq
    gradient_steps: PositiveInt = DqnConfig.gradient_steps
    target_update_interval: PositiveInt = DqnConfig.target_update_interval
    tau: float = Field(DqnConfig.tau, gt=0, le=1)
    max_grad_norm: PositiveFloat = DqnConfig.max_grad_norm

    exploration_final_eps: float = Field(DqnConfig.exploration_final_eps, ge=0, le=1)
    """ε once learning has started; before that, actions are uniform."""
    exploration_initial_eps: float = Field(DqnConfig.exploration_initial_eps, ge=0, le=1)
    exploration_fraction: float = Field(DqnConfig.exploration_fraction, ge=0, le=1)
    """Share of the budget over which ε falls to its final value; 0: constant, as in the paper."""

    improvement_steps: PositiveInt = DqnConfig.improvement_steps
    """κ"""
    improvement_optimiser: Literal["adam", "sgd"] = "adam"
    """Adam has a state of its own, apart from self-learning's."""
    improvement_learning_rate: PositiveFloat = DqnConfig.improvement_learning_rate
    """α̃"""
    improvement_value_unit: float = Field(
        DqnConfig.improvement_value_unit, gt=0, allow_inf_nan=True
    )
    """u: the step is α̃ · clip(mean |target| / u, 1, 10); inf: always α̃, as in the paper."""
    improvement_max_grad_norm: PositiveFloat = DqnConfig.improvement_max_grad_norm
    improvement_revives_units: bool = DqnConfig.improvement_revives_units
    """Units that answer 0 to all states lately broadcast begin anew; false, as in the paper."""
    target_follows_improvement: bool = DqnConfig.target_follows_improvement
    """Copy the improved network into the target network before self-learning goes on."""


class DqnSettings(_CommonDqnSettings):
    """Our own DQN."""

    activation: Literal["relu", "tanh"] = "relu"
    double: bool = DqnConfig.double
    """The online network chooses the next action, the target network values it (double DQN)."""

    exploration: Literal["epsilon-greedy", "boltzmann", "ucb"] = "epsilon-greedy"
    temperature: PositiveFloat = DqnConfig.temperature
    """of boltzmann"""
    confidence: PositiveFloat = DqnConfig.confidence
    """of ucb"""

    def config(self) -> DqnConfig:
        return DqnConfig(**self.model_dump())


class Sb3DqnSettings(_CommonDqnSettings):
    """stable-baselines3's DQN."""

    activation: Literal[
        "relu", "tanh", "elu", "gelu", "leaky_relu", "mish", "selu", "sigmoid", "silu", "softplus"
    ] = "relu"
    policy: Literal["MlpPolicy", "CnnPolicy"] = "MlpPolicy"
    optimizer: Literal["Adam", "AdamW", "Adagrad", "NAdam", "RAdam", "RMSprop", "SGD"] = "Adam"
    optimizer_kwargs: dict[str, Any] = {}
    device: str = "cpu"

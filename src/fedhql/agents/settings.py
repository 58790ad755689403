"""What can be said about each kind of agent in an experiment file; needs no framework to read."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt


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


class Sb3DqnSettings(_AgentSettings):
    """stable-baselines3's DQN, under its own names and, where the paper is silent, its defaults
    of early 2023."""

    hidden: tuple[PositiveInt, ...] = (64, 64)
    activation: Literal[
        "relu", "tanh", "elu", "gelu", "leaky_relu", "mish", "selu", "sigmoid", "silu", "softplus"
    ] = "relu"
    policy: Literal["MlpPolicy", "CnnPolicy"] = "MlpPolicy"
    optimizer: Literal["Adam", "AdamW", "Adagrad", "NAdam", "RAdam", "RMSprop", "SGD"] = "Adam"
    optimizer_kwargs: dict[str, Any] = {}

    learning_rate: PositiveFloat = 1e-4
    learning_starts: int = Field(50_000, ge=0)
    buffer_size: PositiveInt = 1_000_000
    batch_size: PositiveInt = 32
    train_freq: PositiveInt = 4
    gradient_steps: PositiveInt = 1
    target_update_interval: PositiveInt = 10_000
    tau: float = Field(1.0, gt=0, le=1)
    max_grad_norm: PositiveFloat = 10.0

    exploration_final_eps: float = Field(0.05, ge=0, le=1)
    """ε once learning has started; before that, actions are uniform."""
    exploration_initial_eps: float = Field(1.0, ge=0, le=1)
    exploration_fraction: float = Field(0.0, ge=0, le=1)
    """Share of the budget over which ε falls to its final value; 0: constant, as in the paper."""

    improvement_steps: PositiveInt = 64
    """κ"""
    improvement_learning_rate: PositiveFloat = 1e-3
    """α̃, of an Adam of its own"""
    improvement_max_grad_norm: PositiveFloat = 10.0
    target_follows_improvement: bool = True
    """Copy the improved network into the target network before self-learning goes on."""

    device: str = "cpu"

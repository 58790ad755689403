"""The settings of the agents of stable-baselines3 and sb3-contrib, mostly under their own names."""

from collections.abc import Collection
from typing import ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from fedhql.agents.dqn.config import DqnConfig
from fedhql.agents.kind_settings import CommonDqnSettings, KindSettings, known_optimizer

Activation = Literal[
    "relu", "tanh", "elu", "gelu", "leaky_relu", "mish", "selu", "sigmoid", "silu", "softplus"
]


class Sb3DqnSettings(CommonDqnSettings):
    """stable-baselines3's DQN."""

    activation: Activation = "relu"
    policy: Literal["MlpPolicy", "CnnPolicy"] = "MlpPolicy"
    optimizers = ("Adam", "AdamW", "Adagrad", "NAdam", "RAdam", "RMSprop", "SGD")

    optimizer: str = "Adam"
    improvement_optimiser: str = "Adam"
    device: str = "cpu"


class Sb3QrdqnSettings(Sb3DqnSettings):
    """sb3-contrib's QR-DQN, with the defaults of sb3-dqn."""

    n_quantiles: PositiveInt = 50
    """Quantiles of the return for each action; their mean is the action's value."""


class RolloutSettings(KindSettings):
    """What on-policy agents share: stable-baselines3's settings, and those of the Q-head."""

    optimizers: ClassVar[Collection[str]] = Sb3DqnSettings.optimizers

    hidden: tuple[PositiveInt, ...] = (64, 64)
    """The hidden layers of the policy, and those of its critic."""
    activation: Activation = "tanh"
    optimizer: str
    optimizer_kwargs: dict[str, bool | float | list[float]]
    """Keywords of PyTorch's optimiser: eps, betas, alpha, weight_decay, ..."""
    learning_rate: PositiveFloat
    n_steps: PositiveInt
    """The env steps of a rollout. A phase of self-learning may end inside one; the next goes on."""
    gae_lambda: float = Field(ge=0, le=1)
    ent_coef: float = Field(0.0, ge=0)
    vf_coef: float = Field(0.5, ge=0)
    max_grad_norm: PositiveFloat = 0.5
    normalize_advantage: bool
    device: str = "cpu"

    q_hidden: tuple[PositiveInt, ...] = (64, 64)
    """The hidden layers of the Q-head: its A(s, a) and the critic's V(s) answer the server."""
    q_activation: Activation = "relu"
    q_learning_rate: PositiveFloat = 1e-3
    q_memory: PositiveInt = 2_048
    """The Q-head learns from the advantages of so many last env steps."""
    q_batch_size: PositiveInt = 64
    q_epochs: PositiveInt
    """After a rollout of n_steps, it takes q_epochs · n_steps / q_batch_size gradient steps."""
    q_max_grad_norm: PositiveFloat = 10.0

    improvement_steps: PositiveInt = DqnConfig.improvement_steps
    """κ, the gradient steps of one improvement of the Q-head."""
    improvement_optimiser: str = "Adam"
    """The optimiser of improvements; self-learning does not share its state."""
    improvement_learning_rate: PositiveFloat = DqnConfig.improvement_learning_rate
    """α̃, the learning rate of improvements."""
    improvement_value_unit: float = Field(
        DqnConfig.improvement_value_unit, gt=0, allow_inf_nan=True
    )
    """u: the learning rate is α̃ · clip(mean |target| / u, 1, 10); inf gives α̃, as in the paper."""
    improvement_max_grad_norm: PositiveFloat = DqnConfig.improvement_max_grad_norm

    policy_improvement_kl_limit: float = Field(0.001, ge=0)
    """The most that one improvement may move the policy: mean KL(before || after) over its states.
    0 leaves the policy to self-learning."""
    policy_improvement_steps: PositiveInt = 10
    """The most gradient steps of one improvement of the policy."""
    policy_improvement_learning_rate: PositiveFloat = 1e-3
    policy_improvement_temperature: PositiveFloat = 1.0
    """The policy is drawn towards π · exp(A / temperature), A in units of its mean size."""

    @field_validator("optimizer", "improvement_optimiser")
    @classmethod
    def _known_optimizer(cls, name: str) -> str:
        return known_optimizer(name, cls.optimizers)


class Sb3PpoSettings(RolloutSettings):
    """stable-baselines3's PPO, with its defaults."""

    optimizer: str = "Adam"
    optimizer_kwargs: dict[str, bool | float | list[float]] = Field({"eps": 1e-5})
    learning_rate: PositiveFloat = 3e-4
    n_steps: PositiveInt = 2_048
    gae_lambda: float = Field(0.95, ge=0, le=1)
    normalize_advantage: bool = True
    batch_size: PositiveInt = 64
    n_epochs: PositiveInt = 10
    clip_range: PositiveFloat = 0.2
    target_kl: PositiveFloat | None = None
    q_epochs: PositiveInt = 10


class Sb3A2cSettings(RolloutSettings):
    """stable-baselines3's A2C, with its defaults."""

    optimizer: str = "RMSprop"
    optimizer_kwargs: dict[str, bool | float | list[float]] = Field({"alpha": 0.99, "eps": 1e-5})
    learning_rate: PositiveFloat = 7e-4
    n_steps: PositiveInt = 5
    gae_lambda: float = Field(1.0, ge=0, le=1)
    normalize_advantage: bool = False
    q_epochs: PositiveInt = 1

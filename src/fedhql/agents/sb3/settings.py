"""The settings of the agents of stable-baselines3 and sb3-contrib, mostly under their own names."""

from collections.abc import Collection
from typing import ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from fedhql.agents.dqn.config import DqnConfig
from fedhql.agents.kind_settings import CommonDqnSettings, KindSettings, known_optimizer

Activation = Literal[
    "relu", "tanh", "elu", "gelu", "leaky_relu", "mish", "selu", "sigmoid", "silu", "softplus"
]


OPTIMISERS = ("Adam", "AdamW", "Adagrad", "NAdam", "RAdam", "RMSprop", "SGD")
_NAMES = ", ".join(map(repr, OPTIMISERS))


class Sb3DqnSettings(CommonDqnSettings):
    """stable-baselines3's DQN."""

    activation: Activation = "relu"
    """The activation of the hidden layers."""
    policy: Literal["MlpPolicy", "CnnPolicy"] = "MlpPolicy"
    """stable-baselines3's policy class: for vectors, or for images."""
    optimizers = OPTIMISERS

    optimizer: str = Field("Adam", description=_NAMES)
    improvement_optimiser: str = Field("Adam", description=_NAMES)
    device: str = "cpu"
    """PyTorch's device."""


class Sb3QrdqnSettings(Sb3DqnSettings):
    """sb3-contrib's QR-DQN, with the defaults of sb3-dqn."""

    n_quantiles: PositiveInt = 50
    """Quantiles of the return for each action; their mean is the action's value."""


class RolloutSettings(KindSettings):
    """What on-policy agents share: stable-baselines3's settings, and those of the Q-head."""

    optimizers: ClassVar[Collection[str]] = OPTIMISERS

    hidden: tuple[PositiveInt, ...] = (64, 64)
    """The hidden layers of the policy, and those of its critic."""
    activation: Activation = "tanh"
    """The activation of the hidden layers of the policy and its critic."""
    optimizer: str
    """The optimiser of self-learning."""
    optimizer_kwargs: dict[str, bool | float | list[float]]
    """Keywords of PyTorch's optimiser: eps, betas, alpha, weight_decay, ..."""
    learning_rate: PositiveFloat
    """The learning rate of self-learning."""
    n_steps: PositiveInt
    """The env steps of a rollout. A phase of self-learning may end inside one; the next goes on."""
    gae_lambda: float = Field(ge=0, le=1)
    """λ of generalised advantage estimation."""
    ent_coef: float = Field(0.0, ge=0)
    """The weight of the entropy in the loss."""
    vf_coef: float = Field(0.5, ge=0)
    """The weight of the critic's loss."""
    max_grad_norm: PositiveFloat = 0.5
    """The norm at which gradients of self-learning are clipped."""
    normalize_advantage: bool
    """Whether advantages are normalised in each batch."""
    device: str = "cpu"
    """PyTorch's device."""

    q_hidden: tuple[PositiveInt, ...] = (64, 64)
    """The hidden layers of the Q-head: its A(s, a) and the critic's V(s) answer the server."""
    q_activation: Activation = "relu"
    """The activation of the Q-head's hidden layers."""
    q_learning_rate: PositiveFloat = 1e-3
    """The learning rate of the Q-head in self-learning, by Adam."""
    q_memory: PositiveInt = 2_048
    """The Q-head learns from the advantages of so many last env steps."""
    q_batch_size: PositiveInt = 64
    """The env steps in one gradient step of the Q-head."""
    q_epochs: PositiveInt
    """After a rollout of n_steps, it takes q_epochs · n_steps / q_batch_size gradient steps."""
    q_max_grad_norm: PositiveFloat = 10.0
    """The norm at which the Q-head's gradients are clipped."""

    improvement_steps: PositiveInt = DqnConfig.improvement_steps
    """κ, the gradient steps of one improvement of the Q-head."""
    improvement_optimiser: str = Field("Adam", description=_NAMES)
    """The optimiser of improvements; self-learning does not share its state."""
    improvement_learning_rate: PositiveFloat = DqnConfig.improvement_learning_rate
    """α̃, the learning rate of improvements."""
    improvement_value_unit: float = Field(
        DqnConfig.improvement_value_unit, gt=0, allow_inf_nan=True
    )
    """u: the learning rate is α̃ · clip(mean |target| / u, 1, 10); inf gives α̃, as in the paper."""
    improvement_max_grad_norm: PositiveFloat = DqnConfig.improvement_max_grad_norm
    """The norm at which gradients of improvements are clipped."""

    policy_improvement_kl_limit: float = Field(0.001, ge=0)
    """The most that one improvement may move the policy: mean KL(before || after) over its states.
    0 leaves the policy to self-learning."""
    policy_improvement_steps: PositiveInt = 10
    """The most gradient steps of one improvement of the policy."""
    policy_improvement_learning_rate: PositiveFloat = 1e-3
    """The learning rate of improvements of the policy, by Adam."""
    policy_improvement_temperature: PositiveFloat = 1.0
    """The policy is drawn towards π · exp(A / temperature), A in units of its mean size."""

    @field_validator("optimizer", "improvement_optimiser")
    @classmethod
    def _known_optimizer(cls, name: str) -> str:
        return known_optimizer(name, cls.optimizers)


class Sb3PpoSettings(RolloutSettings):
    """stable-baselines3's PPO, with its defaults."""

    optimizer: str = Field("Adam", description=_NAMES)
    optimizer_kwargs: dict[str, bool | float | list[float]] = Field({"eps": 1e-5})
    learning_rate: PositiveFloat = 3e-4
    n_steps: PositiveInt = 2_048
    gae_lambda: float = Field(0.95, ge=0, le=1)
    normalize_advantage: bool = True
    batch_size: PositiveInt = 64
    """The env steps of one gradient step."""
    n_epochs: PositiveInt = 10
    """The passes over each rollout."""
    clip_range: PositiveFloat = 0.2
    """How far PPO's ratio may move from 1 before it is clipped."""
    target_kl: PositiveFloat | None = None
    """If set, the passes over a rollout end early when the policy has moved by more."""
    q_epochs: PositiveInt = 10


class Sb3A2cSettings(RolloutSettings):
    """stable-baselines3's A2C, with its defaults."""

    optimizer: str = Field("RMSprop", description=_NAMES)
    optimizer_kwargs: dict[str, bool | float | list[float]] = Field({"alpha": 0.99, "eps": 1e-5})
    learning_rate: PositiveFloat = 7e-4
    n_steps: PositiveInt = 5
    gae_lambda: float = Field(1.0, ge=0, le=1)
    normalize_advantage: bool = False
    q_epochs: PositiveInt = 1

"""The settings of the agents of stable-baselines3 and sb3-contrib, mostly under their own names."""

from typing import Literal

from pydantic import PositiveInt

from fedhql.agents.kind_settings import CommonDqnSettings


class Sb3DqnSettings(CommonDqnSettings):
    """stable-baselines3's DQN."""

    activation: Literal[
        "relu", "tanh", "elu", "gelu", "leaky_relu", "mish", "selu", "sigmoid", "silu", "softplus"
    ] = "relu"
    policy: Literal["MlpPolicy", "CnnPolicy"] = "MlpPolicy"
    optimizers = ("Adam", "AdamW", "Adagrad", "NAdam", "RAdam", "RMSprop", "SGD")

    optimizer: str = "Adam"
    improvement_optimiser: str = "Adam"
    device: str = "cpu"


class Sb3QrdqnSettings(Sb3DqnSettings):
    """sb3-contrib's QR-DQN, with the defaults of sb3-dqn."""

    n_quantiles: PositiveInt = 50
    """Quantiles of the return for each action; their mean is the action's value."""

"""The kinds of agents: one record for each built-in kind, and users' own classes.

To add a kind: write a module with `build(settings, task)` (and `load_policy(directory, space)`, if
its agents export a policy), and add its settings class and one `AgentKind` here. Settings files,
the command line, the choice of an engine, error texts and the tests derive from the record. This
module imports no framework: a kind's module is loaded when an agent of that kind is built.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal

from gymnasium import Space
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, field_validator

from fedhql.acting import GreedyAnswer
from fedhql.agents.dqn.config import OPTIMISERS, DqnConfig
from fedhql.agents.task import AgentTask
from fedhql.contract import BlackBoxAgent, States
from fedhql.errors import AgentRefused, MissingExtra, SettingsError
from fedhql.plugins import import_plugin, is_plugin


class _AgentSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TabularSettings(_AgentSettings):
    """Watkins Q-learning on a table, for Discrete observations."""

    learning_rate: float = Field(0.1, gt=0, le=1)
    learning_rate_decay: float = Field(0.0, ge=0, le=1)
    """ω: the rate at the k-th visit of a pair is learning_rate · k^-ω; 0 keeps it constant."""
    initial_value: float = 0.0

    exploration: Literal["epsilon-greedy", "boltzmann", "ucb"] = "epsilon-greedy"
    epsilon: float = Field(0.1, ge=0, le=1)
    temperature: PositiveFloat = 1.0
    confidence: PositiveFloat = 1.0

    improvement_learning_rate: float = Field(0.5, gt=0, le=1)
    """α̃, the step of one improvement towards the mean target of a (state, action) pair."""
    improvement_steps: PositiveInt = 1
    """κ, the number of such steps."""


class _CommonDqnSettings(_AgentSettings):
    """The settings that both DQNs share, under stable-baselines3's names."""

    optimizers: ClassVar[Collection[str]]

    hidden: tuple[PositiveInt, ...] = DqnConfig.hidden

    optimizer: str
    optimizer_kwargs: dict[str, bool | float | list[float]] = {}
    """Keywords of PyTorch's optimiser: momentum, betas, eps, weight_decay, ..."""
    learning_rate: PositiveFloat = DqnConfig.learning_rate
    learning_starts: int = Field(DqnConfig.learning_starts, ge=0)
    warm_up: Literal["uniform", "policy"] = "uniform"
    """Actions before learning_starts: uniform, or by the exploration rule used afterwards."""
    buffer_size: PositiveInt = DqnConfig.buffer_size
    batch_size: PositiveInt = DqnConfig.batch_size
    train_freq: PositiveInt = DqnConfig.train_freq
    gradient_steps: PositiveInt = DqnConfig.gradient_steps
    target_update_interval: PositiveInt = DqnConfig.target_update_interval
    tau: float = Field(DqnConfig.tau, gt=0, le=1)
    max_grad_norm: PositiveFloat = DqnConfig.max_grad_norm

    exploration_final_eps: float = Field(DqnConfig.exploration_final_eps, ge=0, le=1)
    """ε after annealing; it applies from learning_starts on, or always if warm_up = "policy"."""
    exploration_initial_eps: float = Field(DqnConfig.exploration_initial_eps, ge=0, le=1)
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
    improvement_revives_units: bool = DqnConfig.improvement_revives_units
    """Reinitialise units that output 0 at all recently broadcast states; false in the paper."""
    target_follows_improvement: bool = DqnConfig.target_follows_improvement
    """Copy the improved network into the target network before self-learning resumes."""

    @field_validator("optimizer", "improvement_optimiser")
    @classmethod
    def _known_optimizer(cls, name: str) -> str:
        """Accept any case, so that --backbone can switch between PyTorch's names and ours."""
        for known in cls.optimizers:
            if name.lower() == known.lower():
                return known
        raise ValueError(f"{name!r} is wrong; allowed: {', '.join(map(repr, cls.optimizers))}")


class DqnSettings(_CommonDqnSettings):
    """fedhql's own DQN, in JAX."""

    optimizers = OPTIMISERS

    optimizer: str = DqnConfig.optimizer
    improvement_optimiser: str = DqnConfig.improvement_optimiser
    activation: Literal["relu", "tanh"] = "relu"
    double: bool = DqnConfig.double
    """Double DQN: the online network chooses the next action, the target network values it."""

    exploration: Literal["epsilon-greedy", "boltzmann", "ucb"] = "epsilon-greedy"
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


class Sb3DqnSettings(_CommonDqnSettings):
    """stable-baselines3's DQN."""

    activation: Literal[
        "relu", "tanh", "elu", "gelu", "leaky_relu", "mish", "selu", "sigmoid", "silu", "softplus"
    ] = "relu"
    policy: Literal["MlpPolicy", "CnnPolicy"] = "MlpPolicy"
    optimizers = ("Adam", "AdamW", "Adagrad", "NAdam", "RAdam", "RMSprop", "SGD")

    optimizer: str = "Adam"
    improvement_optimiser: str = "Adam"
    device: str = "cpu"


@dataclass(frozen=True)
class AgentKind:
    """The record of one kind of agent."""

    settings: type[BaseModel]
    module: str
    loads: tuple[str, ...] = ()  # what its first agent also loads
    exports_policy: bool = False  # if true, the module has `load_policy`
    extra: str | None = None  # the optional extra that installs `packages`
    packages: tuple[str, ...] = ()
    backbone: str | None = None  # the name of this DQN for --backbone
    # Settings -> config for the compiled engine; None: only the message engine runs this kind.
    compiled: Callable[[Any], DqnConfig] | None = None


KINDS: Mapping[str, AgentKind] = {
    "dqn": AgentKind(
        DqnSettings,
        "fedhql.agents.dqn.agent",
        exports_policy=True,
        backbone="dqn",
        compiled=DqnSettings.config,
    ),
    "sb3-dqn": AgentKind(
        Sb3DqnSettings,
        "fedhql.agents.sb3",
        loads=("torch._dynamo",),  # by the first optimiser; it takes longer than torch itself
        exports_policy=True,
        extra="sb3",
        packages=("torch", "stable_baselines3"),
        backbone="sb3",
    ),
    "tabular": AgentKind(TabularSettings, "fedhql.agents.tabular"),
}


def compiled_kinds() -> list[str]:
    """Return the kinds that the compiled engine runs."""
    return [name for name, kind in KINDS.items() if kind.compiled is not None]


def backbones() -> dict[str, str]:
    """Return the kind that each choice of --backbone stands for."""
    return {kind.backbone: name for name, kind in KINDS.items() if kind.backbone is not None}


def find_kind(name: str) -> AgentKind | None:
    """Return the record of a kind; None for a user's own class. Raise SettingsError otherwise."""
    if name in KINDS:
        return KINDS[name]
    if is_plugin(name):
        return None
    raise SettingsError(f"unknown kind {name!r}; allowed: {', '.join(KINDS)}, package.module:Class")


def build_agent(kind: str, options: Mapping[str, Any], task: AgentTask) -> BlackBoxAgent:
    """Build a built-in agent for `task`, or a user's class from its settings and a seed."""
    if (known := find_kind(kind)) is not None:
        return _module(kind).build(known.settings(**options), task)
    users_class = import_plugin("kind", kind, AgentRefused)
    try:
        inspect.signature(users_class).bind(seed=task.seed, **options)
    except TypeError as error:
        raise AgentRefused(
            f"kind = {kind!r} is built with its settings and a seed as keywords: {error}"
        ) from error
    return users_class(seed=task.seed, **options)


def load_policy(
    kind: str, directory: Path, space: Space[Any]
) -> Callable[[States], GreedyAnswer] | None:
    """Return the policy of an exported agent; None for a kind that exports no policy."""
    known = find_kind(kind)
    if known is None or not known.exports_policy:
        return None
    return _module(kind).load_policy(directory, space)


def _module(kind: str) -> Any:
    known = KINDS[kind]
    try:
        return import_module(known.module)
    except ModuleNotFoundError as error:
        if known.extra is None or (error.name or "").split(".")[0] not in known.packages:
            raise
        raise MissingExtra.named(known.extra, f"kind = {kind!r}") from error

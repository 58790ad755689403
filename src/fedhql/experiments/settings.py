"""What an experiment file may say: one frozen class per section, every range checked."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    field_validator,
)

from fedhql.agents.catalog import KINDS, settings_class
from fedhql.cluster.resources import Resources
from fedhql.errors import SettingsError
from fedhql.experiments.contradictions import contradiction, wrong_for
from fedhql.experiments.explain import explain
from fedhql.experiments.overrides import apply_override


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class EnvironmentSettings(_Section):
    """The MDP every agent and the server have a copy of."""

    id: str = Field(description="a Gymnasium id such as 'CartPole-v1'")
    discount: float = Field(0.99, gt=0, le=1)
    """γ"""
    options: dict[str, Any] = {}
    """Keywords for gymnasium.make."""


class FederationSettings(_Section):
    """Algorithm 1.a. Nothing here concerns how an agent learns."""

    rule: Literal[
        "mean-std", "bernstein", "median-mad", "hampel", "trimmed", "bellman-weighted"
    ] = "mean-std"
    """The centre and the spread of all agents' values, and how actions are scored from them."""
    exploration: float = Field(1.0, ge=0)
    """λ, of all rules but bernstein"""
    bound: float | None = Field(None, gt=0)
    """b of bernstein: values lie in [0, b]"""
    confidence: float | None = Field(None, gt=0)
    """c of bernstein: covered with probability 1 - 3 exp(-c)"""
    trim: float | None = Field(None, gt=0)
    """Of trimmed: how many agents each end loses; below 0.5, which share of them."""
    broadcast: Literal["chosen", "all-actions"] = "chosen"
    """Targets for the chosen action of each state, or for all: the centre, where not chosen."""
    learning_rate: float = Field(0.05, gt=0, le=1)
    """α_s, of FedTD"""
    horizon_steps: PositiveInt = 16
    """H_fed"""
    query_batch: PositiveInt = 128
    """B, the server's parallel environments"""
    self_learning_env_steps: PositiveInt = 5_000
    """K, between two federation rounds"""
    server_environments: Literal["reset", "carry-over"] = "reset"
    """At a round's start: all begin anew, or only those whose episode had ended."""
    secure_aggregation: bool = False
    """The server sees sums over agents, and no agent's own values."""
    secure_value_bound: float = Field(1e6, gt=0, le=1e30)
    """Of secure_aggregation: no agent answers with a larger value. The smaller, the finer sums."""

    @property
    def carry_over(self) -> bool:
        return self.server_environments == "carry-over"

    @property
    def all_actions(self) -> bool:
        return self.broadcast == "all-actions"


class BudgetSettings(_Section):
    """Interactions an agent may consume: its own and its share of the server's."""

    env_steps_per_agent: PositiveInt


class EvaluationSettings(_Section):
    """Greedy episodes after each self-learning phase, outside the budget."""

    episodes: PositiveInt = 10
    best_episodes: NonNegativeInt = 100
    """At the end, for the best state of each agent: a maximum of noisy means flatters."""
    episode_step_limit: PositiveInt = 10_000
    """For environments with no limit of their own, where a greedy policy may go on for ever."""


class AgentSettings(BaseModel):
    """One agent: its kind, and whatever else its kind understands."""

    model_config = ConfigDict(frozen=True, extra="allow")
    kind: str = Field("dqn", description=f"{', '.join(KINDS)} or 'package.module:Class'")
    resources: Resources | None = None
    """For --engine ray: cpus, gpus, custom; other engines have none to give."""

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class AttackSettings(_Section):
    """Agents that lie to the server, to see what its rule withstands; for experiments only."""

    name: Literal["nan", "huge", "sign-flip", "noise", "collude", "stealthy"] | None = None
    """What they answer."""
    attackers: NonNegativeInt = 0
    """How many: the last of the agents. They learn and are evaluated like the others."""

    @field_validator("name", mode="before")
    @classmethod
    def _word(cls, name: Any) -> Any:
        """TOML takes a bare nan for a number."""
        return "nan" if isinstance(name, float) and name != name else name


class TaskSettings(_Section):
    """What is learned and how it is federated, whoever the agents are."""

    environment: EnvironmentSettings
    federation: FederationSettings = FederationSettings()
    budget: BudgetSettings
    evaluation: EvaluationSettings = EvaluationSettings()

    def as_toml(self) -> str:
        """With every default written out; reads back as the same settings."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))


class ExperimentSettings(TaskSettings):
    """A whole experiment."""

    attack: AttackSettings = AttackSettings()
    agents: tuple[AgentSettings, ...] = ()

    @property
    def agent_names(self) -> list[str]:
        return [f"agent{n}" for n in range(1, len(self.agents) + 1)]


Settings = TypeVar("Settings", bound=TaskSettings)


def read_settings(text: str, overrides: Sequence[str] = ()) -> ExperimentSettings:
    """Parse and validate an experiment file, with `section.key=value` overrides on top."""
    settings = parse(text, overrides, ExperimentSettings)
    if not settings.agents:
        raise SettingsError("agents: empty; a federation needs at least one [[agents]]")
    if wrong := wrong_for(settings):
        raise SettingsError(wrong)
    agents = tuple(_resolved(n, agent) for n, agent in enumerate(settings.agents, start=1))
    return settings.model_copy(update={"agents": agents})


def parse(text: str, overrides: Sequence[str], model: type[Settings]) -> Settings:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"not a TOML file: {error}") from error
    for override in overrides:
        apply_override(content, override)
    try:
        settings = model.model_validate(content)
    except ValidationError as error:
        raise SettingsError(explain(error, model)) from error
    if wrong := contradiction(settings.federation):
        raise SettingsError(wrong)
    return settings


def read_settings_file(path: Path, overrides: Sequence[str] = ()) -> ExperimentSettings:
    return read_file(path, overrides, read_settings)


def read_file(
    path: Path, overrides: Sequence[str], read: Callable[[str, Sequence[str]], Settings]
) -> Settings:
    try:
        return read(path.read_text(encoding="utf-8"), overrides)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def with_backbone(settings: ExperimentSettings, backbone: str) -> ExperimentSettings:
    """Every DQN agent as ours (dqn) or as stable-baselines3's (sb3), with the same settings."""
    kinds = {"dqn": "dqn", "sb3": "sb3-dqn"}
    if backbone not in kinds:
        raise SettingsError(f"--backbone {backbone}: allowed: {', '.join(kinds)}")
    agents = []
    for number, agent in enumerate(settings.agents, start=1):
        if agent.kind in kinds.values() and agent.kind != kinds[backbone]:
            other = KINDS[kinds[backbone]].model_fields
            defaults = KINDS[agent.kind]().model_dump(mode="json")
            lost = {k: v for k, v in agent.options.items() if k not in other}
            if unknown := [key for key, value in lost.items() if value != defaults[key]]:
                raise SettingsError(
                    f"agents.{number}.{unknown[0]}: {kinds[backbone]!r} has no such setting"
                )
            kept = {key: value for key, value in agent.options.items() if key in other}
            agent = _resolved(
                number, AgentSettings(kind=kinds[backbone], resources=agent.resources, **kept)
            )
        agents.append(agent)
    return settings.model_copy(update={"agents": tuple(agents)})


def differing_keys(ours: TaskSettings, theirs: TaskSettings) -> list[str]:
    """Which settings differ, as dotted keys with both values; but for where agents run."""
    place: Any = {"agents": {"__all__": {"resources"}}}
    a, b = _flat(ours.model_dump(exclude=place)), _flat(theirs.model_dump(exclude=place))
    return [
        f"{key} is {a.get(key)!r} here and {b.get(key)!r} there"
        for key in dict.fromkeys([*a, *b])
        if repr(a.get(key)) != repr(b.get(key))  # a user's NaN equals itself here
    ]


def _resolved(number: int, agent: AgentSettings) -> AgentSettings:
    """The agent with its kind's defaults filled in, or an error that names the key."""
    try:
        known = settings_class(agent.kind)
    except SettingsError as error:
        raise SettingsError(f"agents.{number}.kind: {error}") from error
    if known is None:
        return agent
    try:
        options = known.model_validate(agent.options)
    except ValidationError as error:
        raise SettingsError(explain(error, known, f"agents.{number}.")) from error
    resolved = options.model_dump(mode="json")
    return AgentSettings(kind=agent.kind, resources=agent.resources, **resolved)


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Sequence) and value and isinstance(value[0], Mapping):
            value = {str(n): row for n, row in enumerate(value, start=1)}
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat

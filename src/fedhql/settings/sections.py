"""The sections of an experiment file: one frozen class each, every range checked."""

from typing import Annotated, Any, Literal

import tomli_w
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    field_validator,
)

from fedhql.agents.kinds import KINDS
from fedhql.cluster.resources import Resources
from fedhql.environments.compiled import AUTO, GYMNASIUM
from fedhql.errors import SettingsError
from fedhql.federation import ATTACKS, RULES, rule_spec
from fedhql.federation.cohort import numbered_agents
from fedhql.plugins import is_plugin


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _known_implementation(name: str) -> str:
    if name not in (AUTO, GYMNASIUM) and not is_plugin(name):
        raise ValueError(
            f"{name!r} is wrong; allowed: {AUTO!r}, {GYMNASIUM!r}, or 'package.module:factory'"
        )
    return name


def _known_rule(name: str) -> str:
    try:
        spec = rule_spec(name)
    except SettingsError as error:
        raise ValueError(str(error)) from error
    if unknown := [key for key in spec.numbers if key not in FederationSettings.model_fields]:
        known = dict.fromkeys(key for each in RULES.values() for key in each.numbers)
        raise ValueError(
            f"{name!r} takes the number {unknown[0]!r}; allowed: {', '.join(map(repr, known))}"
        )
    return name


def _known_attack(name: str) -> str:
    if name not in ATTACKS:
        raise ValueError(f"{name!r} is wrong; allowed: {', '.join(map(repr, ATTACKS))}")
    return name


class EnvironmentSettings(_Section):
    """The MDP every agent and the server have a copy of."""

    id: str = Field(description="a Gymnasium id such as 'CartPole-v1'")
    discount: float = Field(0.99, gt=0, le=1)
    """γ"""
    options: dict[str, Any] = {}
    """Keywords for gymnasium.make."""
    implementation: Annotated[str, AfterValidator(_known_implementation)] = AUTO
    """What steps it: "auto" takes our twin where there is one, "gymnasium" never does, and
    "package.module:factory" takes your own twin, which has to be the same MDP as `id`."""


class FederationSettings(_Section):
    """Algorithm 1.a. Nothing here concerns how an agent learns."""

    rule: Annotated[str, AfterValidator(_known_rule)] = "mean-std"
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

    name: Annotated[str, AfterValidator(_known_attack)] | None = None
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
        return numbered_agents(len(self.agents))

"""The sections of an experiment file. Each is a frozen class that checks its ranges."""

from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    field_validator,
    model_validator,
)

from fedhql.agents.kinds import KINDS
from fedhql.cluster.resources import Resources
from fedhql.environments.compiled import AUTO, IMPLEMENTATIONS
from fedhql.errors import SettingsError
from fedhql.federation import ATTACKS, RULES, rule_spec
from fedhql.federation.cohort import numbered_agents
from fedhql.plugins import is_plugin


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _known_implementation(name: str) -> str:
    if name not in IMPLEMENTATIONS and not is_plugin(name):
        raise ValueError(
            f"{name!r} is wrong; allowed: {', '.join(map(repr, IMPLEMENTATIONS))}, or "
            "'package.module:factory'"
        )
    return name


def _known_rule(name: str) -> str:
    try:
        spec = rule_spec(name)
    except SettingsError as error:
        raise ValueError(str(error)) from error
    known = dict.fromkeys(key for each in RULES.values() for key in each.numbers)
    if unknown := [key for key in spec.numbers if key not in known]:
        raise ValueError(
            f"{name!r} takes the number {unknown[0]!r}; allowed: {', '.join(map(repr, known))}"
        )
    return name


def _known_attack(name: str) -> str:
    if name not in ATTACKS:
        raise ValueError(f"{name!r} is wrong; allowed: {', '.join(map(repr, ATTACKS))}")
    return name


class EnvironmentSettings(_Section):
    """The environment. Every agent and the server step copies of their own."""

    id: str = Field(description="a Gymnasium id such as 'CartPole-v1'")
    """The environment; its actions must be discrete. 'module:Id-v0' imports the module first."""
    discount: float = Field(0.99, gt=0, le=1)
    """γ, the discount."""
    options: dict[str, Any] = {}
    """Keyword arguments for gymnasium.make."""
    implementation: Annotated[str, AfterValidator(_known_implementation)] = Field(
        AUTO,
        description=f"{', '.join(map(repr, IMPLEMENTATIONS))}, or 'package.module:factory'",
    )
    """What steps the environment. "auto" uses our twin if there is one; LunarLander's only in
    compiled runs on a GPU, and EnvPool's in those on a CPU. "twin" uses it everywhere,
    "gymnasium" nowhere. "envpool" steps LunarLander-v3 with EnvPool in compiled runs, and with
    Gymnasium elsewhere.
    "package.module:factory" uses your own twin, which must be the same MDP as `id`."""


class FederationSettings(_Section):
    """The server's side of the federation, Algorithm 1.a."""

    rule: Annotated[str, AfterValidator(_known_rule)] = Field(
        "mean-std", description=f"{', '.join(map(repr, RULES))}, or 'package.module:NAME'"
    )
    """How the centre and the spread of all agents' values are computed, and actions scored."""
    exploration: float = Field(1.0, ge=0)
    """λ, for every rule except bernstein."""
    bound: float | None = Field(None, gt=0)
    """b, for bernstein: values lie in [0, b]."""
    confidence: float | None = Field(None, gt=0)
    """c, for bernstein: its bound holds with probability 1 - 3 exp(-c)."""
    trim: float | None = Field(None, gt=0)
    """For trimmed: the number of agents cut at each end; below 0.5, the share of agents."""
    broadcast: Literal["chosen", "all-actions"] = "chosen"
    """Send targets for the chosen action of each state, or for all actions.

    The target of an action that was not chosen is the centre of the agents' values."""
    learning_rate: float = Field(0.05, ge=0, le=1)
    """α_s, the learning rate of FedTD. With 0 the targets are the centre of the agents' values."""
    pessimism: float = Field(0.0, ge=0)
    """μ: FedTD takes centre - μ · spread of the agents' values for the values of the next states.

    The spread is the rule's. With 0, the paper's choice, it takes the centre."""
    random_actions: float = Field(0.0, ge=0, le=1)
    """The probability that an environment of the server takes a random action in a step.

    The paper has none: its server explores by the spread of the agents' values alone. Agents in
    auditions take none."""
    random_actions_env_steps: PositiveInt | None = None
    """For random_actions: the probability falls linearly to 0 over so many env steps of an agent.

    Only the agent's own env steps count. By default the probability is constant."""
    auditions: NonNegativeInt = 0
    """The environments of the server in which each agent acts alone, by its own values.

    Agents that earn less there than the median agent are not heard: they get targets, but their
    values have no part in them. The paper has none."""
    horizon_steps: PositiveInt = 16
    """H_fed, the server's steps in a federation round."""
    query_batch: PositiveInt = 128
    """B, the number of the server's parallel environments."""
    self_learning_env_steps: PositiveInt = 5_000
    """K, an agent's env steps between two federation rounds."""
    server_environments: Literal["reset", "carry-over", "public"] = "reset"
    """At the start of a round, reset all environments, or only those whose episode has ended.

    "public": the first round collects states with random actions; every round asks about them, and
    the later ones cost no env steps. It needs learning_rate = 0."""
    replay_batch: NonNegativeInt = 0
    """R, the earlier transitions of the server that each of its steps learns from again.

    Agents are asked about their states too. They cost no env steps. The paper has none."""
    replay_capacity: PositiveInt = 50_000
    """For replay_batch: the number of latest transitions that the server keeps."""
    secure_aggregation: bool = False
    """Let the server see only sums over agents."""
    secure_value_bound: float = Field(1e6, gt=0, le=1e30)
    """For secure_aggregation: the largest value of an answer. A smaller bound gives finer sums."""

    @property
    def carry_over(self) -> bool:
        return self.server_environments == "carry-over"

    @property
    def public(self) -> bool:
        return self.server_environments == "public"

    @property
    def all_actions(self) -> bool:
        return self.broadcast == "all-actions"


class BudgetSettings(_Section):
    """The env steps that an agent may consume: its own and its share of the server's."""

    env_steps_per_agent: PositiveInt
    """The env steps of one agent. An arm stops when it cannot take another step within them."""


class EvaluationSettings(_Section):
    """Greedy episodes at fixed consumption. They are outside the budget."""

    episodes: PositiveInt = 10
    """The greedy episodes of one evaluation."""
    interval_env_steps: PositiveInt | None = None
    """Evaluate whenever an agent has consumed so many more env steps, its share of the server's
    included. Every arm thus has the same number of evaluations, whatever the length of its rounds.
    The default is federation.self_learning_env_steps."""
    moments: Literal["self-learning", "round", "both"] = "self-learning"
    """Evaluate after the self-learning phase or after the federation round that reaches the next
    such point, or after both. Agents alone have no rounds: they are evaluated after phases."""
    best_episodes: NonNegativeInt = 100
    """Fresh episodes at the end for each agent's best state, whose best mean is too optimistic."""
    episode_step_limit: PositiveInt = 10_000
    """The limit for environments that have none, where a greedy episode may never end."""


class AgentSettings(BaseModel):
    """One agent: its kind, and the settings of that kind."""

    model_config = ConfigDict(frozen=True, extra="allow")
    kind: str = Field("dqn", description=f"{', '.join(KINDS)} or 'package.module:Class'")
    """What the agent is. Its other keys are settings of this kind, or keywords of your class."""
    name: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}$",
        description="a name of letters, digits, '_', '.' and '-', at most 64 of them",
    )
    """The agent's name in tables, files and messages; by default agent1, agent2, ..."""
    resources: Resources | None = None
    """For agents that are actors on Ray: cpus, gpus, custom. Other executors ignore it."""

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class AttackSettings(_Section):
    """Agents that lie to the server, to test its rule. For experiments only."""

    name: Annotated[str, AfterValidator(_known_attack)] | None = Field(
        None, description=", ".join(map(repr, ATTACKS))
    )
    """The attack, which decides what the attackers answer."""
    attackers: NonNegativeInt = 0
    """The number of attackers, the last agents. They learn and are evaluated like the others."""

    @field_validator("name", mode="before")
    @classmethod
    def _word(cls, name: Any) -> Any:
        """Return "nan" as a word: TOML reads a bare nan as a number."""
        return "nan" if isinstance(name, float) and name != name else name


class TaskSettings(_Section):
    """The sections that do not depend on the agents."""

    environment: EnvironmentSettings
    federation: FederationSettings = FederationSettings()
    budget: BudgetSettings
    evaluation: EvaluationSettings = EvaluationSettings()

    @model_validator(mode="after")
    def _with_interval(self) -> Self:
        """Set the interval, so that files state it and arms with other phases keep it."""
        if self.evaluation.interval_env_steps is None:
            every = {"interval_env_steps": self.federation.self_learning_env_steps}
            # The class is frozen, but not yet in use.
            object.__setattr__(self, "evaluation", self.evaluation.model_copy(update=every))
        return self

    @property
    def evaluation_interval(self) -> int:
        return self.evaluation.interval_env_steps or self.federation.self_learning_env_steps

    def as_toml(self) -> str:
        """Return the settings as TOML with every default. They read back as the same settings."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))


class ExperimentSettings(TaskSettings):
    """A whole experiment: the task, its agents and an attack."""

    attack: AttackSettings = AttackSettings()
    agents: tuple[AgentSettings, ...] = ()

    @property
    def agent_names(self) -> list[str]:
        numbered = numbered_agents(len(self.agents))
        return [agent.name or name for agent, name in zip(self.agents, numbered, strict=True)]

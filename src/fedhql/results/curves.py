"""A run's evaluations as arrays, and the scores read off them."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhql.storage.arm_names import FEDHQL, INDEPENDENT, changes, label, order, without_attack
from fedhql.storage.records import CONSENSUS, ROUND, SELF_LEARNING, EvaluationRow
from fedhql.storage.run_directory import Cell

Floats = NDArray[np.float64]
PAPERS: dict[str, Any] = {
    "rule": "mean-std",
    "broadcast": "chosen",
    "server_environments": "reset",
    "pessimism": 0.0,
    "random_actions": 0.0,
    "auditions": 0,
    "replay_batch": 0,
}
RECENT = 0.1  # the last tenth of the evaluations


@dataclass(frozen=True)
class Curve:
    """One arm with one seed: E evaluations of N agents, which are evaluated together."""

    # Env steps per agent, the server's share included, at which the evaluation was due. It was
    # taken at the end of the phase or round that reached them.
    consumed_E: Floats
    returns_NE: Floats  # mean return of each evaluation
    own_E: Floats | None = None  # an agent's own env steps when it was taken
    taken_E: Floats | None = None  # what it had consumed then

    @cached_property
    def best(self) -> Floats:
        """(N, E): the paper's max mean return, a running maximum and so biased upward."""
        return np.maximum.accumulate(self.returns_NE, axis=1)

    def until(self, consumed: float) -> "Curve | None":
        """What had been seen when so much was consumed; None before the first evaluation."""
        count = int(np.searchsorted(self.consumed_E, consumed, side="right"))
        if count == 0:
            return None
        own_E, taken_E = (None if of is None else of[:count] for of in (self.own_E, self.taken_E))
        return Curve(self.consumed_E[:count], self.returns_NE[:, :count], own_E, taken_E)

    def max_mean(self) -> Floats:
        """Return each agent's max mean return: (N,)."""
        return self.best[:, -1]

    def recent_mean(self) -> Floats:
        count = max(1, round(RECENT * len(self.consumed_E)))
        return self.returns_NE[:, -count:].mean(axis=1)

    def second_half_mean(self) -> Floats:
        return self.returns_NE[:, len(self.consumed_E) // 2 :].mean(axis=1)

    def area(self) -> Floats:
        """Under the curve of evaluations, divided by its length: the mean return on the way."""
        if len(self.consumed_E) == 1:
            return self.returns_NE[:, 0]
        area = np.asarray(np.trapezoid(self.returns_NE, self.consumed_E, axis=1), dtype=np.float64)
        return area / (self.consumed_E[-1] - self.consumed_E[0])


Arms = dict[str, dict[int, Curve]]  # arm -> seed -> curve


@dataclass(frozen=True)
class Measures:
    """What was measured beside the returns: means over the last tenth of the evaluations, (N,)."""

    start_values_N: Floats  # the return that an agent expects at the start of an episode
    discounted_N: Floats  # the discounted return that it got
    silent_units_N: Floats  # the share of its ReLU units that are silent; NaN if it has none


def agent_names(settings: dict[str, Any]) -> list[str]:
    agents = enumerate(settings["agents"], start=1)
    return [agent.get("name") or f"agent{number}" for number, agent in agents]


@dataclass(frozen=True)
class Run:
    """What reports are made from: files only, finished or not."""

    name: str
    settings: dict[str, Any]
    manifest: dict[str, Any]
    arms: Arms
    best_returns: dict[Cell, Floats]  # (N,) of the best states, re-evaluated; where that was done
    # Federated arms after their rounds, where `arms` has them after self-learning.
    after_rounds: Arms = field(default_factory=dict)
    consensus: Arms = field(default_factory=dict)  # the consensus policy, as one agent
    measures: dict[Cell, Measures] = field(default_factory=dict)

    @property
    def budget(self) -> int:
        return self.settings["budget"]["env_steps_per_agent"]

    @property
    def agents(self) -> list[str]:
        return agent_names(self.settings)

    @property
    def title(self) -> str:
        count = len(self.agents)
        return f"{self.settings['environment']['id']}, {count} agent{'s' * (count > 1)}"

    @property
    def federated_arms(self) -> list[str]:
        """By their λ, then those that differ in something else."""

        def key(arm: str) -> tuple[float, Any]:
            value = self.exploration(arm)
            return np.inf if value is None else value, order(arm)

        return sorted((arm for arm in self.arms if arm != INDEPENDENT), key=key)

    @property
    def ordered_arms(self) -> list[str]:
        return [arm for arm in (INDEPENDENT, *self.federated_arms) if arm in self.arms]

    def label(self, arm: str) -> str:
        """An arm as readers know it from the paper."""
        if arm == INDEPENDENT:
            return "DQN alone" if self.only_dqn else "alone"
        federation = self.settings["federation"]
        attack, clean = self.attack(arm), without_attack(arm)
        own = [] if clean == FEDHQL else [label(clean)]
        if clean == FEDHQL and federation.get("rule") == "mean-std":
            own = [f"λ = {federation['exploration']:g}"]
        changed = changes(clean)
        past = [
            value if isinstance(value, str) else label(f"{key}={value:g}")
            for key, theirs in PAPERS.items()
            if key not in changed and (value := federation.get(key, theirs)) != theirs
        ]
        lies = [f"{attack[1]} × {attack[0]}"] if attack else []
        return ", ".join(["FedHQL", *own, *past, *lies])

    def attack(self, arm: str) -> tuple[str, int] | None:
        """What the last agents of an arm answer instead of the truth, and how many they are."""
        own: dict[str, Any] = {} if arm == INDEPENDENT else self.settings.get("attack", {})
        changed = changes(arm)
        name = changed.get("attack", own.get("name", ""))
        attackers = int(changed.get("attackers", own.get("attackers", 0)))
        return (name, attackers) if attackers else None

    def exploration(self, arm: str) -> float | None:
        """λ of an arm that is the paper's in everything else."""
        federation = self.settings["federation"]
        past = any(federation.get(key, theirs) != theirs for key, theirs in PAPERS.items())
        if past or self.attack(arm):
            return None
        if arm == FEDHQL:
            return federation["exploration"]
        key, _, value = arm.partition("=")
        return float(value) if key == "exploration" and "," not in value else None

    @property
    def only_after_rounds(self) -> bool:
        """Return whether federated arms were not evaluated after self-learning."""
        return self.settings.get("evaluation", {}).get("moments") == ROUND

    def moment(self, arm: str) -> str:
        """Return the moment of an arm's evaluations in `arms`, and of its consensus policy's."""
        return ROUND if self.only_after_rounds and arm in self.after_rounds else SELF_LEARNING

    def after_round(self) -> "Run":
        """Return the run with the evaluations after rounds, where an arm has them."""
        return replace(self, arms=self.arms | self.after_rounds)

    @property
    def reached(self) -> float:
        """Return the env steps per agent that every arm and seed has been evaluated at."""
        return min(
            float(curve.consumed_E[-1]) for of in self.arms.values() for curve in of.values()
        )

    def until(self, consumed: int) -> "Run":
        """Return the run with curves as if the budget had ended here.

        What was measured at the end of the run stays.
        """
        budget = self.settings["budget"] | {"env_steps_per_agent": consumed}
        settings = self.settings | {"budget": budget}
        arms, after_rounds, consensus = (
            {
                arm: {seed: cut for seed, curve in of.items() if (cut := curve.until(consumed))}
                for arm, of in arms.items()
            }
            for arms in (self.arms, self.after_rounds, self.consensus)
        )
        return replace(
            self, settings=settings, arms=arms, after_rounds=after_rounds, consensus=consensus
        )

    @property
    def only_dqn(self) -> bool:
        """Return whether every agent is a DQN of ours or of stable-baselines3."""
        return all(agent["kind"] in ("dqn", "sb3-dqn") for agent in self.settings["agents"])


def run_of_rows(
    name: str,
    settings: dict[str, Any],
    manifest: dict[str, Any],
    rows: list[EvaluationRow],
    best_returns: dict[Cell, Floats],
) -> Run:
    """Return the run whose evaluations these are: arm by arm, seed by seed, agent by agent."""
    after_phases = {row.arm for row in rows if row.after == SELF_LEARNING}
    # Settings may have a federated arm evaluated after its rounds only.
    first = [row for row in rows if (row.after == SELF_LEARNING) == (row.arm in after_phases)]
    of_agents = [row for row in first if row.agent != CONSENSUS]
    rounds = [row for row in rows if row.after == ROUND and row.agent != CONSENSUS]
    shared = [row for row in first if row.agent == CONSENSUS]
    N, interval = len(settings["agents"]), settings.get("evaluation", {}).get("interval_env_steps")
    curves_of = partial(curves, interval=interval, budget=settings["budget"]["env_steps_per_agent"])
    return Run(
        name,
        settings,
        manifest,
        curves_of(of_agents, N),
        best_returns,
        after_rounds=curves_of(rounds, N),
        consensus=curves_of(shared, 1),
        measures=measures(of_agents, N),
    )


def curves(
    rows: Iterable[EvaluationRow],
    agents: int,
    *,
    interval: int | None = None,
    budget: int | None = None,
) -> Arms:
    """Return the curves of rows that come arm by arm and seed by seed, one agent after the other.

    The i-th evaluation is due when `i * interval` env steps are consumed, the last one at the end
    of the budget. Older runs have no interval; they evaluated after every phase.
    """
    arms: Arms = {}
    for (arm, seed), group in groupby(rows, key=lambda row: (row.arm, row.seed)):
        of_cell = list(group)
        whole = of_cell[: len(of_cell) // agents * agents]
        returns_EN = np.array([row.mean_return for row in whole]).reshape(-1, agents)
        own_E = np.array([row.own_env_steps for row in whole[::agents]], dtype=np.float64)
        taken_E = consumed_E = np.array([row.budget_env_steps for row in whole[::agents]])
        if interval is not None:
            consumed_E = np.minimum(interval * np.arange(1.0, len(own_E) + 1), budget or np.inf)
        if len(own_E):
            arms.setdefault(arm, {})[seed] = Curve(consumed_E, returns_EN.T, own_E, taken_E)
    return arms


def measures(rows: Iterable[EvaluationRow], agents: int) -> dict[Cell, Measures]:
    """Return what rows, in the same order, say beside the returns."""
    found = {}
    for (arm, seed), group in groupby(rows, key=lambda row: (row.arm, row.seed)):
        of_cell = [(row.start_value, row.discounted_return, row.silent_units) for row in group]
        whole = of_cell[: len(of_cell) // agents * agents]
        if whole:
            table_ENM = np.array(whole).reshape(-1, agents, 3)
            last = table_ENM[-max(1, round(RECENT * len(table_ENM))) :]
            measured = Measures(*last.mean(axis=0).T)
            if not np.isnan(measured.discounted_N).all():  # older runs did not measure it
                found[Cell(arm, seed)] = measured
    return found

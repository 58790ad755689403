"""A run's evaluations as arrays, and the scores read off them."""

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhql.storage.arm_names import FEDHQL, INDEPENDENT, changes, label, order, without_attack
from fedhql.storage.records import EvaluationRow
from fedhql.storage.run_directory import Cell

Floats = NDArray[np.float64]
PAPERS = {"rule": "mean-std", "broadcast": "chosen", "server_environments": "reset"}
RECENT = 0.1  # the last tenth of the evaluations


@dataclass(frozen=True)
class Curve:
    """One arm with one seed: E evaluations of N agents, which are evaluated together."""

    consumed_E: Floats  # env steps per agent, the server's share included
    returns_NE: Floats  # mean return of each evaluation

    @cached_property
    def best(self) -> Floats:
        """(N, E): the paper's max mean return, a running maximum and so biased upward."""
        return np.maximum.accumulate(self.returns_NE, axis=1)

    def until(self, consumed: float) -> "Curve | None":
        """What had been seen when so much was consumed; None before the first evaluation."""
        count = int(np.searchsorted(self.consumed_E, consumed, side="right"))
        return Curve(self.consumed_E[:count], self.returns_NE[:, :count]) if count else None

    def max_mean(self) -> Floats:
        """(N,), as the two that follow."""
        return self.best[:, -1]

    def recent_mean(self) -> Floats:
        count = max(1, round(RECENT * len(self.consumed_E)))
        return self.returns_NE[:, -count:].mean(axis=1)

    def area(self) -> Floats:
        """Under the curve of evaluations, divided by its length: the mean return on the way."""
        if len(self.consumed_E) == 1:
            return self.returns_NE[:, 0]
        area = np.asarray(np.trapezoid(self.returns_NE, self.consumed_E, axis=1), dtype=np.float64)
        return area / (self.consumed_E[-1] - self.consumed_E[0])


Arms = dict[str, dict[int, Curve]]  # arm -> seed -> curve


@dataclass(frozen=True)
class Run:
    """What reports are made from: files only, finished or not."""

    name: str
    settings: dict[str, Any]
    manifest: dict[str, Any]
    arms: Arms
    best_returns: dict[Cell, Floats]  # (N,) of the best states, re-evaluated; where that was done

    @property
    def budget(self) -> int:
        return self.settings["budget"]["env_steps_per_agent"]

    @property
    def agents(self) -> list[str]:
        return [f"agent{n}" for n in range(1, len(self.settings["agents"]) + 1)]

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
            return "DQN alone" if self._only_dqn() else "alone"
        federation = self.settings["federation"]
        attack, clean = self.attack(arm), without_attack(arm)
        own = [] if clean == FEDHQL else [label(clean)]
        if clean == FEDHQL and federation.get("rule") == "mean-std":
            own = [f"λ = {federation['exploration']:g}"]
        changed = changes(clean)
        words = [federation[key] for key in PAPERS if key in federation and key not in changed]
        past = [word for word in words if word not in PAPERS.values()]
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
        past = any(federation.get(key, papers) != papers for key, papers in PAPERS.items())
        if past or self.attack(arm):
            return None
        if arm == FEDHQL:
            return federation["exploration"]
        key, _, value = arm.partition("=")
        return float(value) if key == "exploration" and "," not in value else None

    def _only_dqn(self) -> bool:
        return all(agent["kind"] in ("dqn", "sb3-dqn") for agent in self.settings["agents"])


def curves(rows: list[EvaluationRow], agents: int) -> Arms:
    """Rows come arm by arm and seed by seed, the agents of one evaluation together."""
    arms: Arms = {}
    for (arm, seed), group in groupby(rows, key=lambda row: (row.arm, row.seed)):
        of_cell = list(group)
        whole = of_cell[: len(of_cell) // agents * agents]
        returns_EN = np.array([row.mean_return for row in whole]).reshape(-1, agents)
        consumed_E = np.array([row.budget_env_steps for row in whole[::agents]])
        if len(consumed_E):
            arms.setdefault(arm, {})[seed] = Curve(consumed_E, returns_EN.T)
    return arms

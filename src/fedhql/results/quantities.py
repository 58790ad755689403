"""What the paper's statements are about, read off a run: numbers by seed (S seeds)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from fedhql.results.curves import Run
from fedhql.results.objectives import (
    Estimate,
    Floats,
    curves_until,
    sample_efficiency,
    share_that_needs_less,
)
from fedhql.results.paper_experiments import Experiment
from fedhql.storage.arm_names import INDEPENDENT

LAMBDAS = (0.0, 1.0, 3.0, 5.0, 10.0)
ALONE = None  # in the place of a λ
Quantities = dict[str, Floats]  # name -> (S,)
Exploration = TypeVar("Exploration", float, float | None)


class Missing(Exception):
    """What a statement is about was not run, or not so far."""


@dataclass(frozen=True)
class Held:
    """A run that is held against one of the paper's experiments.

    A `partial` run answers with the λ it has, at the share of the budget it reaches.
    """

    run: Run
    of: Experiment
    partial: bool = False

    def env_steps(self, share: float) -> float:
        """Return where in an agent's budget a statement about this share of it is judged."""
        whole = share * self.of.budget
        return min(whole, self.run.budget) if self.partial else whole

    def explorations(self, wanted: Sequence[Exploration]) -> list[Exploration]:
        """Return the λ to look at; those without an arm are left out of a partial run only."""
        here = [x for x in wanted if not self.partial or self.arm(x) in self.run.arms]
        if not here:
            raise Missing
        return here

    def arm(self, exploration: float | None) -> str:
        if exploration is ALONE:
            return INDEPENDENT
        arms = self.run.federated_arms
        return next((arm for arm in arms if self.run.exploration(arm) == exploration), "")

    def scores(
        self, share: float, exploration: float | None, agent: int | None = None
    ) -> dict[int, float]:
        """Return seed -> max mean return at this share of the budget: of an agent, or all."""
        found = curves_until(self.run, self.arm(exploration), self.env_steps(share))
        if not found:
            raise Missing
        best = {seed: curve.max_mean() for seed, curve in found.items()}
        return {
            seed: float(best_N.mean() if agent is None else best_N[agent - 1])
            for seed, best_N in best.items()
        }

    def name(self, share: float, exploration: float | None, agent: int | None = None) -> str:
        arm = "alone" if exploration is ALONE else f"λ = {exploration:g}"
        reached = self.env_steps(share) / self.of.budget
        early = f" at {reached:.0%}" if reached < share else ""
        return (arm if agent is None else f"Agent{agent}, {arm}") + early


def levels(
    share: float, explorations: Sequence[float | None], agents: Sequence[int | None] = (None,)
) -> Callable[[Held], Quantities]:
    """Return each of these agents' returns (None: the mean over all) in each of these arms."""

    def quantities(held: Held) -> Quantities:
        return {
            held.name(share, exploration, agent): np.array(
                [*held.scores(share, exploration, agent).values()]
            )
            for agent in agents
            for exploration in held.explorations(explorations)
        }

    return quantities


def gains(
    share: float, explorations: Sequence[float], agents: Sequence[int | None] = (None,)
) -> Callable[[Held], Quantities]:
    """Return the differences from the same agents alone, with the same seeds."""

    def quantities(held: Held) -> Quantities:
        found = {}
        for agent in agents:
            alone = held.scores(share, ALONE, agent)
            for exploration in held.explorations(explorations):
                ours = held.scores(share, exploration, agent)
                differences = [ours[seed] - alone[seed] for seed in ours if seed in alone]
                if not differences:
                    raise Missing
                name = held.name(share, exploration, agent)
                found[f"{name} minus alone"] = np.array(differences)
        return found

    return quantities


def differences_between_lambdas(share: float) -> Callable[[Held], Quantities]:
    """Return, for each λ, the mean over agents minus its mean over every λ with the same seed."""

    def quantities(held: Held) -> Quantities:
        explorations = held.explorations(LAMBDAS)
        if len(explorations) < 2:
            raise Missing  # one λ cannot differ from itself
        scores = [held.scores(share, exploration) for exploration in explorations]
        seeds = sorted(set.intersection(*(set(each) for each in scores)))
        if not seeds:
            raise Missing
        scores_LS = np.array([[each[seed] for seed in seeds] for each in scores])
        centred_LS = scores_LS - scores_LS.mean(axis=0)
        return {
            f"{held.name(share, x)} minus every λ": row
            for x, row in zip(explorations, centred_LS, strict=True)
        }

    return quantities


def share_of_agents(held: Held) -> Quantities:
    rows = sample_efficiency(held.run, held.arm(1.0), server_share=False)
    if not rows or held.run.budget < held.env_steps(1.0):
        raise Missing
    return {f"{held.name(1.0, 1.0)}, share of agents": share_that_needs_less(rows)}


def each_agents_probability(held: Held) -> str:
    arm = held.arm(1.0)
    own, whole = (sample_efficiency(held.run, arm, server_share=share) for share in (False, True))
    told = [
        f"{row.agent.capitalize()} {p.mean:.2f} [{p.low:.2f}, {p.high:.2f}]"
        for row in own
        for p in [row.probability_of_less()]
    ]
    with_share = Estimate.of(share_that_needs_less(whole)).as_share()
    return f"with the server's share: {with_share}; probability of each: {', '.join(told)}"

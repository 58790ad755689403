"""What the paper's statements are about, read off a run: numbers by seed (S seeds)."""

from collections.abc import Callable, Sequence

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


class Missing(Exception):
    """What a statement is about was not run, or not so far."""


def _name(exploration: float | None, agent: int | None) -> str:
    arm = "alone" if exploration is ALONE else f"λ = {exploration:g}"
    return arm if agent is None else f"Agent{agent}, {arm}"


def _arm(run: Run, exploration: float | None) -> str:
    if exploration is ALONE:
        return INDEPENDENT
    found = (arm for arm in run.federated_arms if run.exploration(arm) == exploration)
    return next(found, "")


def _scores(
    run: Run, of: Experiment, share: float, exploration: float | None, agent: int | None = None
) -> dict[int, float]:
    """Return seed -> max mean return at this share of the paper's budget: of an agent, or all."""
    found = curves_until(run, _arm(run, exploration), share * of.budget)
    if not found:
        raise Missing
    best = {seed: curve.max_mean() for seed, curve in found.items()}
    return {
        seed: float(best_N.mean() if agent is None else best_N[agent - 1])
        for seed, best_N in best.items()
    }


def levels(
    share: float, explorations: Sequence[float | None], agents: Sequence[int | None] = (None,)
) -> Callable[[Run, Experiment], Quantities]:
    """Return each of these agents' returns (None: the mean over all) in each of these arms."""

    def quantities(run: Run, of: Experiment) -> Quantities:
        return {
            _name(exploration, agent): np.array(
                [*_scores(run, of, share, exploration, agent).values()]
            )
            for agent in agents
            for exploration in explorations
        }

    return quantities


def gains(
    share: float, explorations: Sequence[float], agents: Sequence[int | None] = (None,)
) -> Callable[[Run, Experiment], Quantities]:
    """Return the differences from the same agents alone, with the same seeds."""

    def quantities(run: Run, of: Experiment) -> Quantities:
        found = {}
        for agent in agents:
            alone = _scores(run, of, share, ALONE, agent)
            for exploration in explorations:
                ours = _scores(run, of, share, exploration, agent)
                differences = [ours[seed] - alone[seed] for seed in ours if seed in alone]
                if not differences:
                    raise Missing
                found[f"{_name(exploration, agent)} minus alone"] = np.array(differences)
        return found

    return quantities


def differences_between_lambdas(share: float) -> Callable[[Run, Experiment], Quantities]:
    """Return, for each λ, the mean over agents minus its mean over every λ with the same seed."""

    def quantities(run: Run, of: Experiment) -> Quantities:
        scores = [_scores(run, of, share, exploration) for exploration in LAMBDAS]
        seeds = sorted(set.intersection(*(set(each) for each in scores)))
        if not seeds:
            raise Missing
        scores_LS = np.array([[each[seed] for seed in seeds] for each in scores])
        centred_LS = scores_LS - scores_LS.mean(axis=0)
        return {
            f"{_name(x, None)} minus every λ": row
            for x, row in zip(LAMBDAS, centred_LS, strict=True)
        }

    return quantities


def share_of_agents(run: Run, of: Experiment) -> Quantities:
    rows = sample_efficiency(run, _arm(run, 1.0), server_share=False)
    if not rows or run.budget < of.budget:
        raise Missing
    return {"λ = 1, share of agents": share_that_needs_less(rows)}


def each_agents_probability(run: Run) -> str:
    arm = _arm(run, 1.0)
    own, whole = (sample_efficiency(run, arm, server_share=share) for share in (False, True))
    told = [
        f"{row.agent.replace('agent', 'Agent')} {p.mean:.2f} [{p.low:.2f}, {p.high:.2f}]"
        for row in own
        for p in [row.probability_of_less()]
    ]
    with_share = Estimate.of(share_that_needs_less(whole))
    return f"with the server's share: {with_share}; probability of each: {', '.join(told)}"

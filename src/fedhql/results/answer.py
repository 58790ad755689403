"""What a run answers: is federated better than alone, by how much, how sure."""

from dataclasses import dataclass

import numpy as np

from fedhql.results.curves import Curve, Run
from fedhql.results.objectives import Estimate
from fedhql.results.statistics import LEVEL
from fedhql.storage.arm_names import FEDHQL, INDEPENDENT


@dataclass(frozen=True)
class Gain:
    """A federated arm minus alone, mean over agents: seed by seed, at equal consumption."""

    arm: str
    seeds: int
    consumed: float  # env steps per agent that every seed of both arms has reached
    best: Estimate  # of the max mean return, the paper's metric
    recent: Estimate  # of the mean of the last tenth of the evaluations


def gains(run: Run, level: float = LEVEL) -> list[Gain]:
    """Return the gain of every arm that nobody attacks, where it can be compared with alone."""
    arms = [arm for arm in run.federated_arms if not run.attack(arm)]
    return [found for arm in arms if (found := _gain(run, arm, level)) is not None]


def _gain(run: Run, arm: str, level: float) -> Gain | None:
    alone = run.arms.get(INDEPENDENT, {})
    pairs = [(curve, alone[seed]) for seed, curve in run.arms[arm].items() if seed in alone]
    consumed = min((float(curve.consumed_E[-1]) for pair in pairs for curve in pair), default=0.0)
    cut = [(ours.until(consumed), theirs.until(consumed)) for ours, theirs in pairs]
    both = [(ours, theirs) for ours, theirs in cut if ours is not None and theirs is not None]
    if not both:
        return None
    best, recent = np.array([_scores(ours) - _scores(theirs) for ours, theirs in both]).T
    return Gain(arm, len(both), consumed, Estimate.of(best, level), Estimate.of(recent, level))


def _scores(curve: Curve) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the max mean return and the recent mean, each averaged over agents."""
    return np.array([curve.max_mean().mean(), curve.recent_mean().mean()])


def answer(run: Run, level: float = LEVEL) -> str:
    """Return the answer about the federation as its settings describe it, in two sentences.

    "Above" and "below": the interval of the gain lies wholly on that side of 0.
    """
    found = {gain.arm: gain for gain in gains(run, level)}
    if not found:
        return _why_none(run)
    gain = found.get(FEDHQL) or next(iter(found.values()))
    ours, alone = run.label(gain.arm), run.label(INDEPENDENT)
    where = f"at {gain.consumed:,.0f} env steps per agent, the server's share included"
    if gain.seeds == 1:
        return (
            f"{ours} minus {alone}: {gain.best.mean:+.3g} in max mean return, mean over agents, "
            f"{where}. One seed cannot show a difference: run more, such as seeds 0 to 4."
        )
    return (
        f"{ours} {_compared(gain.best)} {alone}{_by(gain.best)} in max mean return, mean over "
        f"agents ({level:.0%} t-interval, {gain.seeds} seeds, {where}). In the mean of the last "
        f"10 % of evaluations it {_compared(gain.recent)} {alone}{_by(gain.recent)}."
    )


def _why_none(run: Run) -> str:
    arms = {*run.arms, *run.manifest.get("arms", ())}  # some may have no evaluation yet
    if INDEPENDENT in arms and len(arms) > 1:
        return (
            "Federated and alone cannot be compared yet: no seed has been evaluated in both. "
            "Finish the run, or run the arms independent and fedhql with the same seeds."
        )
    which, missing = ("Only", FEDHQL) if INDEPENDENT in arms else ("No", INDEPENDENT)
    more = f"For a comparison, also run the arm {missing} with the same seeds."
    return f"{which} agents alone were run. {more}"


def _compared(gain: Estimate) -> str:
    if gain.low > 0:
        return "is above"
    return "is below" if gain.high < 0 else "is not shown to differ from"


def _by(gain: Estimate) -> str:
    if gain.high < 0:
        return f" by {Estimate(-gain.mean, -gain.high, -gain.low)}"
    return f" by {gain}" if gain.low > 0 else f": a gain of {gain}"

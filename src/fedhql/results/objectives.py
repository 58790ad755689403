"""The paper's two objectives, computed: system welfare, and each agent's sample efficiency."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from fedhql.results.curves import Curve, Run
from fedhql.results.statistics import LEVEL, t_interval
from fedhql.storage.arm_names import INDEPENDENT

Floats = NDArray[np.float64]
FRACTIONS = (0.05, 0.1, 0.2, 0.4, 0.6, 1.0)  # of the budget


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its t-interval; of one seed, without."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values_S: Sequence[float] | Floats, level: float = LEVEL) -> "Estimate":
        return cls(float(np.mean(values_S)), *t_interval(values_S, level))

    def __str__(self) -> str:
        if not np.isfinite(self.low):
            return f"{self.mean:{digits_of(abs(self.mean))}} [1 seed]"
        digits = digits_of(max(abs(self.low), abs(self.high)))
        return f"{self.mean:{digits}} [{self.low:{digits}}, {self.high:{digits}}]"


def digits_of(size: float) -> str:
    """How returns of this size are written: FrozenLake's are below 1."""
    return "z.0f" if size >= 10 else "z.3g"  # z: no "-0"


@dataclass(frozen=True)
class Welfare:
    """Objective 1 at one point of the budget, on the paper's metric."""

    fraction: float
    arm: str
    seeds: int
    welfare: Estimate
    gain: Estimate | None  # over independent, seed by seed; None if there is nothing to compare


@dataclass(frozen=True)
class Efficiency:
    """Objective 2 for one agent: interactions needed to reach what it reaches alone."""

    agent: str
    arm: str
    ratio_S: list[float]  # federated over alone, each seed; inf: never reached
    probability: float  # over seeds, that it is below 1

    @property
    def median_ratio(self) -> float:
        return float(np.median(self.ratio_S))


def welfare_of(run: Run, arm: str, consumed: float) -> dict[int, float]:
    """Seed -> max mean return, averaged over agents, when so much is consumed.

    Only seeds that have come so far: a run may be under way.
    """
    return {
        seed: float(curve.max_mean().mean())
        for seed, curve in curves_until(run, arm, consumed).items()
    }


def curves_until(run: Run, arm: str, consumed: float) -> dict[int, Curve]:
    phase = run.settings["federation"]["self_learning_env_steps"]
    return {
        seed: part
        for seed, curve in run.arms.get(arm, {}).items()
        # The last phase may be cut short, and a round of the server's before it.
        if curve.consumed_E[-1] + 2 * phase >= consumed and (part := curve.until(consumed))
    }


def system_welfare(run: Run, *, level: float = LEVEL) -> list[Welfare]:
    """At equal total consumption, the server's included."""
    rows = []
    for fraction in FRACTIONS:
        alone = welfare_of(run, INDEPENDENT, fraction * run.budget)
        for arm in run.arms:
            if not (scores := welfare_of(run, arm, fraction * run.budget)):
                continue
            both = sorted(scores.keys() & alone.keys()) if arm != INDEPENDENT else []
            gains = np.array([scores[seed] - alone[seed] for seed in both])
            rows.append(
                Welfare(
                    fraction,
                    arm,
                    len(scores),
                    Estimate.of(list(scores.values()), level),
                    Estimate.of(gains, level) if both else None,
                )
            )
    return rows


def sample_efficiency(run: Run, arm: str) -> list[Efficiency]:
    """Alone, an agent reaches R_n after D_n interactions; how many in the federation?"""
    finished, alone = (curves_until(run, name, run.budget) for name in (arm, INDEPENDENT))
    pairs = [(finished[seed], alone[seed]) for seed in finished if seed in alone]
    if not pairs:
        return []
    rows = []
    for n, agent in enumerate(run.agents):
        ratios = []
        for together, by_itself in pairs:
            reached = by_itself.max_mean()[n]
            ratios.append(_first(together, n, reached) / _first(by_itself, n, reached))
        rows.append(Efficiency(agent, arm, ratios, fmean(ratio < 1 for ratio in ratios)))
    return rows


def _first(curve: Curve, agent: int, reached: float) -> float:
    """What had been consumed when an agent's return first was at least this."""
    there = np.flatnonzero(curve.best[agent] >= reached)
    return float(curve.consumed_E[there[0]]) if len(there) else np.inf

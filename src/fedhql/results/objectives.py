"""The paper's two objectives, computed: system welfare, and each agent's sample efficiency."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedhql.results.curves import Curve, Run
from fedhql.results.statistics import LEVEL, clopper_pearson, t_interval
from fedhql.storage.arm_names import INDEPENDENT

Floats = NDArray[np.float64]
FRACTIONS = (0.05, 0.1, 0.2, 0.4, 0.6, 1.0)  # of the budget
# Returns to reach, beside what an agent reaches alone. CartPole-v0 was solved at 195, v1 is at
# 475; LunarLander is solved at 200.
THRESHOLDS: dict[str, tuple[float, ...]] = {
    "CartPole-v1": (195, 475),
    "LunarLander-v3": (0, 100, 200),
}


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its t-interval; of one seed or a few equal ones, without."""

    mean: float
    low: float
    high: float
    seeds: int = 1

    @classmethod
    def of(cls, values_S: Sequence[float] | Floats, level: float = LEVEL) -> "Estimate":
        mean = float(np.mean(values_S))
        interval = t_interval(values_S, level) if np.isfinite(mean) else (np.nan, np.nan)
        return cls(mean, *interval, len(values_S))

    @property
    def has_interval(self) -> bool:
        return bool(np.isfinite(self.low))

    @property
    def is_zero(self) -> bool:
        """Whether every seed is exactly 0."""
        return self.mean == 0 and (self.low == 0 or not self.has_interval)

    def as_share(self) -> "Estimate":
        """Return the estimate of a share: its interval, if it has one, ends at 0 and 1."""
        if not self.has_interval:
            return self
        return replace(self, low=max(self.low, 0.0), high=min(self.high, 1.0))

    def __str__(self) -> str:
        size = max(abs(self.low), abs(self.high)) if self.has_interval else abs(self.mean)
        return self.written(digits_of(size))

    def written(self, digits: str) -> str:
        """Return the mean and its interval in this format, or the reason why there is none."""
        if not np.isfinite(self.mean):
            return f"{self.mean:{digits}}"  # diverged
        interval = f"{self.low:{digits}}, {self.high:{digits}}"
        if not self.has_interval:
            interval = "1 seed" if self.seeds == 1 else f"{self.seeds} equal seeds"
        return f"{self.mean:{digits}} [{interval}]"


def digits_of(size: float) -> str:
    """How returns of this size are written: FrozenLake's are below 1, diverged values above 1e6."""
    return "z.0f" if 10 <= size < 1e6 else "z.3g"  # z: no "-0"


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
    """Objective 2 for one agent: how soon it reaches a return, federated over alone."""

    agent: str
    # Of each seed. 0: only the federated agent reached it; inf: only the agent alone; 1: neither.
    ratio_S: list[float]

    @property
    def median_ratio(self) -> float:
        return float(np.median(self.ratio_S))

    def probability_of_less(self, level: float = LEVEL) -> Estimate:
        """Return the share of seeds in which federation needs less, with the exact interval."""
        less = sum(ratio < 1 for ratio in self.ratio_S)
        return Estimate(less / len(self.ratio_S), *clopper_pearson(less, len(self.ratio_S), level))


def welfare_of(run: Run, arm: str, consumed: float) -> dict[int, float]:
    """Seed -> max mean return, averaged over agents, when so much is consumed.

    Only seeds that have come so far: a run may be under way.
    """
    return {
        seed: float(curve.max_mean().mean())
        for seed, curve in curves_until(run, arm, consumed).items()
    }


def curves_until(run: Run, arm: str, consumed: float) -> dict[int, Curve]:
    # In older runs the last phase may be cut short, and a round of the server's before it.
    phase = run.settings["federation"]["self_learning_env_steps"]
    slack = 0 if "interval_env_steps" in run.settings.get("evaluation", {}) else 2 * phase
    return {
        seed: part
        for seed, curve in run.arms.get(arm, {}).items()
        if curve.consumed_E[-1] + slack >= consumed and (part := curve.until(consumed))
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


def sample_efficiency(
    run: Run, arm: str, *, server_share: bool, reach: float | None = None
) -> list[Efficiency]:
    """Return, for each agent, the env steps to a return in this arm over those alone.

    The return is `reach`, or what the agent reaches alone in its budget. An agent's own env steps
    count, as in the paper, and with `server_share` also its share of the server's. Only seeds
    that have finished in both arms and have recorded these steps; [] if there are none.
    """
    finished, alone = (curves_until(run, name, run.budget) for name in (arm, INDEPENDENT))
    pairs = [
        (together, by_itself)
        for seed in finished
        if seed in alone
        and (together := _over_steps(finished[seed], server_share))
        and (by_itself := _over_steps(alone[seed], server_share))
    ]
    if not pairs:
        return []
    rows = []
    for n, agent in enumerate(run.agents):
        ratios = []
        for together, by_itself in pairs:
            wanted = by_itself.max_mean()[n] if reach is None else reach
            ours, theirs = _first(together, n, wanted), _first(by_itself, n, wanted)
            ratios.append(1.0 if ours == theirs else ours / theirs)
        rows.append(Efficiency(agent, ratios))
    return rows


def share_that_needs_less(agents: Sequence[Efficiency]) -> Floats:
    """Return the share of agents that federation brings there sooner -> (S,)."""
    ratios_NS = np.array([agent.ratio_S for agent in agents])
    return np.asarray((ratios_NS < 1).mean(axis=0), dtype=np.float64)


def _over_steps(curve: Curve, server_share: bool) -> Curve | None:
    """Return the curve over what counts as consumed; None if that was not recorded."""
    if server_share:
        return curve if curve.taken_E is None else replace(curve, consumed_E=curve.taken_E)
    return None if curve.own_E is None else replace(curve, consumed_E=curve.own_E)


def _first(curve: Curve, agent: int, reach: float) -> float:
    """Return what was consumed when the agent's return first was at least this; inf if never."""
    there = np.flatnonzero(curve.best[agent] >= reach)
    return float(curve.consumed_E[there[0]]) if len(there) else np.inf

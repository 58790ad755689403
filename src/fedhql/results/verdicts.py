"""Whether a statement about a run holds: one written rule for all (docs/results.md)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedhql.results.objectives import Estimate, Floats
from fedhql.results.statistics import LEVEL, holm, sign_flip_p_above, t_p_above

MET, NOT_MET, UNDECIDED, NOT_RUN = "met", "not met", "undecided", "not run"
PAbove = Callable[[Floats, float], float]  # (S,) and a bound -> one-sided p that the mean is above


@dataclass(frozen=True)
class Range:
    """Where each quantity of a statement must be, and the unit in which it falls short."""

    above: float
    below: float
    unit: float

    def __str__(self) -> str:
        if np.isinf(self.below):
            return f"above {self.above:g}"
        return (
            f"below {self.below:g}" if np.isinf(self.above) else f"{self.above:g} to {self.below:g}"
        )

    def estimate(self, values_S: Floats) -> Estimate:
        """Return the mean over seeds with its interval, cut to 0 to 1 for shares (unit 1)."""
        found = Estimate.of(values_S)
        return found.as_share() if self.unit == 1 else found

    def shortfall(self, value: float) -> float:
        return max(self.above - value, value - self.below, 0.0) / self.unit


@dataclass(frozen=True)
class Evidence:
    """What a run says about a statement: its quantities by seed, before any correction."""

    quantities: Mapping[str, Floats]  # name -> (S,)
    holds: bool  # the side on which the evidence is stronger
    p: float  # two-sided, of Student's test
    p_sign_flips: float  # the same of the permutation test
    shortfall: float  # of the quantity that falls short most, in units


@dataclass(frozen=True)
class Verdict:
    """A statement of the paper held against a run."""

    experiment: str
    statement: str
    section: str  # of the paper
    range: Range
    evidence: Evidence | None  # None: not run, or not so far
    p_holm: float | None  # corrected for all statements that were judged together
    detail: str  # more of what was measured

    @property
    def status(self) -> str:
        if self.evidence is None or self.p_holm is None:
            return NOT_RUN
        if self.p_holm > 1 - LEVEL:
            return UNDECIDED
        return MET if self.evidence.holds else NOT_MET

    @property
    def seeds(self) -> int:
        found = self.evidence.quantities.values() if self.evidence else ()
        return min((len(values_S) for values_S in found), default=0)

    @property
    def ours(self) -> str:
        found = self.evidence.quantities.items() if self.evidence else ()
        told = [f"{name}: {self.range.estimate(values_S)}" for name, values_S in found]
        return "; ".join([*told, *([self.detail] if self.detail else [])])


def weigh(quantities: Mapping[str, Floats], allowed: Range, rng: np.random.Generator) -> Evidence:
    """Return the evidence that every quantity is in the range, or that one is not."""
    holds, p = _two_sided(quantities, allowed, t_p_above)
    _, p_flips = _two_sided(
        quantities, allowed, lambda values_S, bound: sign_flip_p_above(values_S, bound, rng)
    )
    worst = max(allowed.shortfall(float(values_S.mean())) for values_S in quantities.values())
    return Evidence(quantities, holds, p, p_flips, worst)


def _two_sided(
    quantities: Mapping[str, Floats], allowed: Range, p_above: PAbove
) -> tuple[bool, float]:
    """Return the likelier side and twice its one-sided p.

    All quantities are inside if each is, so the largest p decides and needs no correction. One is
    outside if any is, so the smallest p decides and is corrected for their number (Bonferroni).
    """
    inside, outside = [], []
    for values_S in quantities.values():
        mirrored = ((values_S, allowed.above), (-values_S, -allowed.below))
        bounds = [(values, bound) for values, bound in mirrored if np.isfinite(bound)]
        inside.append(max(p_above(values, bound) for values, bound in bounds))
        outside.append(min(p_above(-values, -bound) for values, bound in bounds))
    p_holds, p_fails = max(inside), len(outside) * min(outside)
    return p_holds <= p_fails, min(1.0, 2 * min(p_holds, p_fails))


def correct(p_values: Sequence[float | None]) -> list[float | None]:
    """Return Holm's correction over the statements that were run; None stays None."""
    corrected = iter(holm([p for p in p_values if p is not None]).tolist())
    return [None if p is None else next(corrected) for p in p_values]


def distance(verdicts: Sequence[Verdict]) -> float | None:
    """Return the mean shortfall over the statements that were run; None if none was."""
    found = [verdict.evidence.shortfall for verdict in verdicts if verdict.evidence]
    return float(np.mean(found)) if found else None

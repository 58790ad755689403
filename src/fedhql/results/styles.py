"""What curves look like, in figures and on pages: measures, colours, means with bands."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from fedhql.results.curves import Curve, Floats, Run
from fedhql.storage.arm_names import INDEPENDENT

# Okabe and Ito's palette, told apart by colour-blind readers; linestyles for print.
INDEPENDENT_STYLE = ("#D55E00", "--")
FEDERATED_STYLES = [
    ("#0072B2", "-"),
    ("#009E73", "-."),
    ("#CC79A7", (0, (5, 1))),
    ("#E69F00", (0, (3, 1, 1, 1))),
    ("#56B4E9", (0, (1, 1))),
    ("#000000", (0, (8, 2, 1, 2))),
]
Style = tuple[str, Any]  # colour, linestyle
POINTS = 200  # of a drawn curve
SEEDS_OF_A_BAND = 3  # fewer seeds are drawn one by one: a band would look surer than they are
BEST, EACH = "max mean return (the paper's metric)", "mean return of each evaluation"
MEASURES: dict[str, Callable[[Curve], Floats]] = {
    BEST: lambda curve: curve.best,
    EACH: lambda curve: curve.returns_NE,
}
Points = tuple[Floats, Floats]
Band = Callable[[Floats], tuple[Floats, Floats]]  # (S, G) -> low (G,), high (G,)


def styles(runs: Sequence[Run]) -> dict[str, Style]:
    """By label: runs with other arms share a legend, so that a label has one style in all."""
    federated = dict.fromkeys(run.label(arm) for run in runs for arm in run.federated_arms)
    kinds = len(FEDERATED_STYLES)
    chosen = {
        # When all have been used, the same colours with other dashes.
        name: (FEDERATED_STYLES[n % kinds][0], FEDERATED_STYLES[(n + n // kinds) % kinds][1])
        for n, name in enumerate(federated)
    }
    return {run.label(INDEPENDENT): INDEPENDENT_STYLE for run in runs} | chosen


def seed_count(run: Run) -> str:
    """Return how many seeds the arms of a run have, such as "3 seeds" or "2 to 3 seeds"."""
    counts = sorted({len(seeds) for seeds in run.arms.values()}) or [0]
    ends = dict.fromkeys([counts[0], counts[-1]])
    return f"{' to '.join(map(str, ends))} seed{'s' * (counts[-1] != 1)}"


def around_means(runs: Iterable[Run], band: str) -> str:
    """Say what is drawn around the means over seeds: this band, every seed, or both."""
    counts = {len(seeds) for run in runs for seeds in run.arms.values()}
    parts = [f"bands: {band}"] if max(counts, default=0) >= SEEDS_OF_A_BAND else []
    few = any(1 < count < SEEDS_OF_A_BAND for count in counts)
    return "; ".join([*parts, *(["thick lines: means; thin lines: single seeds"] if few else [])])


def mean_and_band(seeds: Sequence[Points], band: Band) -> tuple[Floats, Floats, Floats, Floats]:
    """Return points, the mean over seeds, and the band around it.

    Seeds are evaluated at slightly different consumption: interpolate where all have data.
    """
    first, last = max(x[0] for x, _ in seeds), min(x[-1] for x, _ in seeds)
    known = np.unique(np.concatenate([x for x, _ in seeds]))
    grid = known[(known >= first) & (known <= last)]
    if len(grid) > POINTS:
        grid = np.linspace(first, last, POINTS)
    values_SG = np.array([np.interp(grid, x, y) for x, y in seeds])
    low, high = band(values_SG)
    return grid, values_SG.mean(axis=0), low, high

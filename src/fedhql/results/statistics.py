"""Statistics over seeds: pure, on arrays, randomness passed in.

The seed is the unit. Agents of one federation learn from each other, so they are no independent
samples: average them within a seed (S seeds) before anything here.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
PAPER_LEVEL = 0.8  # of the paper's intervals
RESAMPLES = 10_000


def interquartile_mean(values_S: ArrayLike) -> float:
    """The mean of what is left without the lowest and the highest quarter, whole values only."""
    ordered = np.sort(np.asarray(values_S, dtype=np.float64).ravel())
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def bootstrap_band(
    values_SG: ArrayLike,
    rng: np.random.Generator,
    *,
    level: float = PAPER_LEVEL,
    resamples: int = RESAMPLES,
) -> tuple[Floats, Floats]:
    """Efron's percentile interval of the mean over S seeds, at each of G points -> (G,), (G,)."""
    values = np.asarray(values_SG, dtype=np.float64)
    S = len(values)
    # How often each seed is drawn, so that one product averages all points of all resamples.
    counts_RS = rng.multinomial(S, np.full(S, 1 / S), size=resamples)
    outside = (1 - level) / 2
    low, high = np.quantile(counts_RS @ values / S, [outside, 1 - outside], axis=0)
    return low, high


def bootstrap_interval(
    values_S: ArrayLike, rng: np.random.Generator, *, level: float = PAPER_LEVEL
) -> tuple[float, float]:
    """The same of single values; of one seed, that seed itself."""
    low, high = bootstrap_band(np.reshape(values_S, (-1, 1)), rng, level=level)
    return float(low[0]), float(high[0])


def probability_of_improvement(ours_S: ArrayLike, theirs_S: ArrayLike) -> float:
    """P(X > Y) + P(X = Y) / 2 for a seed of each drawn at random: Mann-Whitney's U, normalised."""
    ours, theirs = np.asarray(ours_S)[:, None], np.asarray(theirs_S)[None]
    return float((ours > theirs).mean() + (ours == theirs).mean() / 2)


def performance_profile(values: ArrayLike, thresholds_T: ArrayLike) -> Floats:
    """The share of values that are at least each threshold -> (T,)."""
    at_least = np.asarray(values).ravel()[None] >= np.asarray(thresholds_T)[:, None]
    return at_least.mean(axis=1)

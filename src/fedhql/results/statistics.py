"""Statistics over seeds: pure, on arrays, randomness passed in.

The seed is the unit. Agents of one federation learn from each other, so they are no independent
samples: average them within a seed (S seeds) before anything here.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhql.errors import SettingsError

Floats = NDArray[np.float64]
LEVEL = 0.95  # of our intervals
PAPER_LEVEL = 0.8  # of the bootstrap bands in the paper's own figures
RESAMPLES = 10_000
EXACT_FLIPS_UP_TO = 15  # seeds; 2^15 sign vectors are still quick to try


def require_level(level: float) -> None:
    """Raise SettingsError if no interval can have this level."""
    if not 0 < level < 1:
        raise SettingsError(f"level = {level:g}: allowed: between 0 and 1, as in 0.95")


def t_band(values_SG: ArrayLike, level: float = LEVEL) -> tuple[Floats, Floats]:
    """Return Student's interval of the mean over S seeds, at each of G points -> (G,), (G,).

    One seed says nothing about the spread: its interval reaches from -inf to inf.
    """
    from scipy.special import stdtrit  # here, because it takes a moment to load

    values = np.asarray(values_SG, dtype=np.float64)
    S = len(values)
    mean = values.mean(axis=0)
    if S == 1:
        return np.full_like(mean, -np.inf), np.full_like(mean, np.inf)
    reach = stdtrit(S - 1, (1 + level) / 2) * values.std(axis=0, ddof=1) / np.sqrt(S)
    return mean - reach, mean + reach


def t_interval(values_S: ArrayLike, level: float = LEVEL) -> tuple[float, float]:
    """Return the same of single values; of too few equal ones, from -inf to inf."""
    if _too_few_equal([values_S], level):
        return -np.inf, np.inf
    low, high = t_band(np.reshape(values_S, (-1, 1)), level)
    return float(low[0]), float(high[0])


def _too_few_equal(samples: Sequence[ArrayLike], level: float) -> bool:
    """Return whether no sample has a spread, and the smallest shows nothing by itself.

    Equal values have no spread to judge by, so Student's interval would be a point. We judge by the
    sign test instead, as `t_p_above` does: its two-sided p is 2^(1-S), 0.5 with two seeds.
    """
    least = min(np.size(values_S) for values_S in samples)
    return not any(np.ptp(values_S) for values_S in samples) and 2.0 ** (1 - least) > 1 - level


def welch_interval(ours_S: ArrayLike, theirs_T: ArrayLike, level: float) -> tuple[float, float]:
    """Return Welch's interval of the difference of two means, of seeds that are not paired.

    One seed says nothing about the spread, and a few equal seeds say little: with them, the
    interval reaches from -inf to inf.
    """
    from scipy.special import stdtrit

    ours, theirs = np.asarray(ours_S, dtype=np.float64), np.asarray(theirs_T, dtype=np.float64)
    if min(len(ours), len(theirs)) == 1 or _too_few_equal([ours, theirs], level):
        return -np.inf, np.inf
    difference = float(ours.mean() - theirs.mean())
    squares = np.array([each.var(ddof=1) / len(each) for each in (ours, theirs)])
    if not squares.any():
        return difference, difference
    freedom = squares.sum() ** 2 / (squares**2 / (len(ours) - 1, len(theirs) - 1)).sum()
    reach = float(stdtrit(freedom, (1 + level) / 2) * np.sqrt(squares.sum()))
    return difference - reach, difference + reach


def t_p_above(values_S: ArrayLike, bound: float) -> float:
    """Return the one-sided p-value of Student's test that the mean is above `bound`.

    Equal values have no spread to judge by. Then p is that of the sign test: 2^-S above the bound,
    else 1.
    """
    from scipy.special import stdtr

    above = np.asarray(values_S, dtype=np.float64) - bound
    S, mean = len(above), above.mean()
    if S == 1:
        return 1.0
    if np.ptp(above) == 0:
        return 2.0**-S if mean > 0 else 1.0
    return float(stdtr(S - 1, -mean / (above.std(ddof=1) / np.sqrt(S))))


def sign_flip_p_above(values_S: ArrayLike, bound: float, rng: np.random.Generator) -> float:
    """Return the one-sided p-value of the permutation test that the mean is above `bound`.

    If the true centre is `bound` and differences from it are symmetric, every sign was as likely
    as the other. p is the share of sign vectors whose mean is at least the observed one: of all
    2^S for up to 15 seeds, so p is at least 2^-S; of a sample for more.
    """
    above = np.asarray(values_S, dtype=np.float64) - bound
    S = len(above)
    if S <= EXACT_FLIPS_UP_TO:
        signs_FS = 1 - 2 * (np.arange(2**S)[:, None] >> np.arange(S) & 1)
    else:
        # The observed signs belong to the sample, so that p cannot be 0.
        sampled = rng.choice([-1, 1], size=(RESAMPLES - 1, S))
        signs_FS = np.concatenate([np.ones((1, S), dtype=sampled.dtype), sampled])
    rounding = 1e-12 * np.abs(above).sum()
    return float(np.mean(signs_FS @ above >= above.sum() - rounding))


def holm(p_C: ArrayLike) -> Floats:
    """Return Holm's adjusted p-values of C tests: rejecting those <= α errs at most α of the time.

    That is the probability of even one wrong rejection, however the tests depend on each other.
    """
    p = np.asarray(p_C, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1)
    return adjusted


def clopper_pearson(successes: int, trials: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the exact interval of a probability: it covers at least `level` of the time."""
    from scipy.special import betaincinv

    outside = (1 - level) / 2
    failures = trials - successes
    low = betaincinv(successes, failures + 1, outside) if successes else 0.0
    high = betaincinv(successes + 1, failures, 1 - outside) if failures else 1.0
    return float(low), float(high)


def bootstrap_band(
    values_SG: ArrayLike,
    rng: np.random.Generator,
    *,
    level: float = PAPER_LEVEL,
    resamples: int = RESAMPLES,
) -> tuple[Floats, Floats]:
    """Return Efron's percentile interval of the mean over S seeds, at each of G points.

    The paper's figures have it. With few seeds it is too narrow (benchmarks/coverage.py), so it
    decides nothing here.
    """
    values = np.asarray(values_SG, dtype=np.float64)
    S = len(values)
    # How often each seed is drawn, so that one product averages all points of all resamples.
    counts_RS = rng.multinomial(S, np.full(S, 1 / S), size=resamples)
    outside = (1 - level) / 2
    low, high = np.quantile(counts_RS @ values / S, [outside, 1 - outside], axis=0)
    return low, high


def interquartile_mean(values_S: ArrayLike) -> float:
    """Return the mean without the lowest and the highest quarter, whole values only."""
    ordered = np.sort(np.asarray(values_S, dtype=np.float64).ravel())
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def probability_of_improvement(ours_S: ArrayLike, theirs_S: ArrayLike) -> float:
    """Return P(X > Y) + P(X = Y) / 2 for a seed of each drawn at random (Mann-Whitney's U)."""
    ours, theirs = np.asarray(ours_S)[:, None], np.asarray(theirs_S)[None]
    return float((ours > theirs).mean() + (ours == theirs).mean() / 2)


def performance_profile(values: ArrayLike, thresholds_T: ArrayLike) -> Floats:
    """Return the share of values that are at least each threshold -> (T,)."""
    at_least = np.asarray(values).ravel()[None] >= np.asarray(thresholds_T)[:, None]
    return at_least.mean(axis=1)

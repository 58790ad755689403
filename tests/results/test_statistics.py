import re
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from numpy.typing import ArrayLike
from rliable import metrics

from benchmarks.coverage import DISTRIBUTIONS, covered, samples, t_intervals
from fedhql.results.statistics import (
    EXACT_FLIPS_UP_TO,
    RESAMPLES,
    bootstrap_band,
    clopper_pearson,
    holm,
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
    sign_flip_p_above,
    t_band,
    t_interval,
    t_p_above,
    welch_interval,
)

DOCS = Path(__file__).parents[2] / "docs"


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize("seeds", [2, 5, 15])
def test_the_t_interval_is_scipys(seeds: int, level: float) -> None:
    values = rng(seeds).exponential(100, size=seeds)
    theirs = scipy.stats.ttest_1samp(values, 0).confidence_interval(level)
    assert t_interval(values, level) == pytest.approx((theirs.low, theirs.high))


def test_a_t_interval_by_hand() -> None:
    # Mean 10, standard deviation 2 over 3 seeds; t(0.975, 2) = 4.303.
    assert t_interval([8, 10, 12]) == pytest.approx((10 - 4.9683, 10 + 4.9683), abs=1e-3)
    assert t_interval([500] * 6) == (500, 500)
    # The two-sided sign test of 5 equal seeds has p = 2^-4, which is above 0.05.
    assert t_interval([500] * 5) == (-np.inf, np.inf)
    assert t_interval([500] * 5, 0.9) == (500, 500)


def test_one_seed_has_no_interval() -> None:
    assert t_interval([12.3]) == (-np.inf, np.inf)
    assert t_p_above([12.3], 0) == 1


def test_a_t_band_is_an_interval_at_each_point() -> None:
    values_SG = rng().normal(size=(6, 3))
    low_G, high_G = t_band(values_SG, 0.9)
    for g, values_S in enumerate(values_SG.T):
        assert t_interval(values_S, 0.9) == pytest.approx((low_G[g], high_G[g]))


ROW = r"^\| (.+) \| (5|15) \| ([\d.]+)% \| ([\d.]+)% \| ([\d.]+)% \| ([\d.]+)% \|$"
COVERED = re.findall(ROW, (DOCS / "results.md").read_text(), re.M)


@pytest.mark.parametrize("row", COVERED, ids=lambda row: f"{row[0]}, {row[1]} seeds")
def test_intervals_cover_the_mean_as_the_page_says(row: tuple[str, ...]) -> None:
    name, seeds, *told = row
    trials = 2_000
    values_ST, mean = samples(name, int(seeds), trials, rng())
    found = [
        covered(*ends, mean)
        for level in (0.95, 0.8)
        for ends in (
            t_intervals(values_ST, level),
            bootstrap_band(values_ST, rng(), level=level, resamples=500),
        )
    ]
    for share, percent in zip(found, told, strict=True):
        expected = float(percent) / 100
        error = 4 * np.sqrt(expected * (1 - expected) / trials)  # fails 1 of 16,000 times
        assert share == pytest.approx(expected, abs=error + 0.0005)


def test_every_simulated_row_is_on_the_page() -> None:
    assert [(name, seeds) for name, seeds, *_ in COVERED] == [
        (name, seeds) for name in DISTRIBUTIONS for seeds in ("5", "15")
    ]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_simulated_mean_is_the_true_one(name: str) -> None:
    values, mean = samples(name, 1, 40_000, rng())
    assert values.mean() == pytest.approx(mean, abs=4 * values.std() / np.sqrt(values.size))


@pytest.mark.parametrize("data", range(4))
def test_the_t_test_is_scipys(data: int) -> None:
    values = rng(data).normal(0.5, 1, size=7)
    theirs = scipy.stats.ttest_1samp(values, 0.3, alternative="greater").pvalue
    assert t_p_above(values, 0.3) == pytest.approx(theirs)
    assert t_p_above(-values, -0.3) == pytest.approx(1 - theirs)


def test_values_without_spread_are_judged_by_their_signs() -> None:
    assert [t_p_above([5, 5, 5], bound) for bound in (4, 5, 6)] == [1 / 8, 1, 1]


@pytest.mark.parametrize("seeds", [3, 8])
def test_the_sign_flip_test_is_scipys(seeds: int) -> None:
    values = rng(seeds).normal(0.5, 1, size=seeds)
    theirs = scipy.stats.permutation_test(
        (values - 0.2,),
        np.mean,
        permutation_type="samples",
        alternative="greater",
        n_resamples=np.inf,
    ).pvalue
    assert sign_flip_p_above(values, 0.2, rng()) == pytest.approx(theirs)


def test_the_sign_flip_test_by_hand() -> None:
    # Sums of ±1 ±2: 3, 1, -1, -3. Observed 3, then 1 (from -1 + 2), then -3.
    assert sign_flip_p_above([1, 2], 0, rng()) == 1 / 4
    assert sign_flip_p_above([-1, 2], 0, rng()) == 2 / 4
    assert sign_flip_p_above([-1, -2], 0, rng()) == 1
    assert sign_flip_p_above([11, 12, 13, 14, 15], 10, rng()) == 2**-5
    assert sign_flip_p_above([10, 10], 10, rng()) == 1


def test_many_seeds_are_flipped_by_chance() -> None:
    values = rng(3).normal(0.3, 1, size=EXACT_FLIPS_UP_TO + 1)
    all_signs = 1 - 2 * (np.arange(2 ** len(values))[:, None] >> np.arange(len(values)) & 1)
    exact = np.mean(all_signs @ values >= values.sum())
    # Four standard errors of a share of the resamples.
    error = 4 * np.sqrt(exact * (1 - exact) / RESAMPLES)
    assert 0.01 < exact < 0.5
    assert sign_flip_p_above(values, 0, rng()) == pytest.approx(exact, abs=error)
    assert sign_flip_p_above(np.ones(40), 0, rng()) == 1 / RESAMPLES


def test_holm_by_hand() -> None:
    # Sorted 0.01, 0.02, 0.03, 0.04: times 4, 3, 2, 1, and never below the one before.
    assert holm([0.03, 0.01, 0.04, 0.02]).tolist() == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.6, 0.9]).tolist() == [1, 1]
    assert holm([]).tolist() == []


def test_holm_rarely_rejects_one_of_many_true_hypotheses() -> None:
    p_TC = rng().uniform(size=(4_000, 20))
    errors = np.mean([holm(p_C).min() <= 0.05 for p_C in p_TC])
    # Independent tests err 1 - (1 - 0.05 / 20)^20 = 4.9 %; four standard errors.
    assert errors == pytest.approx(0.0488, abs=4 * np.sqrt(0.0488 * 0.9512 / 4_000))


@pytest.mark.parametrize(("successes", "trials"), [(0, 5), (3, 5), (5, 5), (11, 15)])
def test_the_exact_interval_of_a_probability_is_scipys(successes: int, trials: int) -> None:
    theirs = scipy.stats.binomtest(successes, trials).proportion_ci(0.95, method="exact")
    assert clopper_pearson(successes, trials) == pytest.approx((theirs.low, theirs.high))


def bootstrap_interval(
    values_S: ArrayLike, rng: np.random.Generator, level: float
) -> tuple[float, float]:
    low, high = bootstrap_band(np.reshape(values_S, (-1, 1)), rng, level=level)
    return float(low[0]), float(high[0])


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize("data", [0, 1, 2])
def test_the_bootstrap_interval_is_scipys(data: int, level: float) -> None:
    values = rng(data).exponential(100, size=10)
    theirs = scipy.stats.bootstrap(
        (values,),
        np.mean,
        method="percentile",
        confidence_level=level,
        n_resamples=RESAMPLES,
        rng=rng(1),
    ).confidence_interval
    # Both estimate a quantile from resamples: its standard error is sqrt(p (1 - p) / R) / density.
    # Five of them, of a difference of two, are exceeded once in a million.
    outside = (1 - level) / 2
    density = scipy.stats.norm.pdf(scipy.stats.norm.ppf(outside))
    error = np.sqrt(2 * outside * (1 - outside) / RESAMPLES) / density
    tolerance = 5 * error * values.std() / np.sqrt(len(values))
    assert bootstrap_interval(values, rng(2), level) == pytest.approx(theirs, abs=tolerance)


def test_the_bootstrap_interval_of_two_seeds_by_hand() -> None:
    # Means of two draws from {0, 1}: 0, 1/2 and 1 with probabilities 1/4, 1/2 and 1/4.
    assert bootstrap_interval([0, 1], rng(), 0.8) == (0, 1)
    assert bootstrap_interval([0, 1], rng(), 0.4) == (0.5, 0.5)


def test_the_bootstrap_interval_covers_the_mean_as_often_as_theory_says() -> None:
    S, trials, level = 20, 2_000, 0.8
    low, high = bootstrap_band(rng().normal(7, 3, (S, trials)), rng(1), level=level, resamples=1000)
    # It takes the spread of S values for the mean's, S - 1 degrees of freedom or not: a little
    # narrow, so it covers less than its level says.
    reach = scipy.stats.norm.ppf((1 + level) / 2) * np.sqrt((S - 1) / S)
    expected = 1 - 2 * scipy.stats.t.sf(reach, S - 1)
    assert 0.76 < expected < 0.8
    # Four standard errors: a right interval fails once in 16 000 data seeds.
    tolerance = 4 * np.sqrt(expected * (1 - expected) / trials)
    assert np.mean((low < 7) & (high > 7)) == pytest.approx(expected, abs=tolerance)


def test_a_higher_level_is_wider() -> None:
    values = rng().normal(size=8)
    low, high = bootstrap_interval(values, rng(1), 0.8)
    lower, higher = bootstrap_interval(values, rng(1), 0.95)
    assert lower < low < values.mean() < high < higher


def test_the_same_generator_gives_the_same_interval() -> None:
    values = rng().normal(size=8)
    first = bootstrap_interval(values, rng(1), 0.8)
    assert bootstrap_interval(values, rng(1), 0.8) == first
    assert bootstrap_interval(values, rng(2), 0.8) != first


def test_a_bootstrap_band_is_an_interval_at_each_point() -> None:
    values_SG = rng().normal(size=(6, 3))
    low_G, high_G = bootstrap_band(values_SG, rng(1))
    for g, values_S in enumerate(values_SG.T):
        assert bootstrap_interval(values_S, rng(1), 0.8) == pytest.approx((low_G[g], high_G[g]))


@pytest.mark.parametrize("seeds", range(1, 13))
def test_the_interquartile_mean_is_rliables(seeds: int) -> None:
    values = rng(seeds).normal(size=seeds)
    theirs = metrics.aggregate_iqm(values[:, None])
    assert interquartile_mean(values) == pytest.approx(theirs)


def test_the_interquartile_mean_by_hand() -> None:
    assert interquartile_mean([-1000, 1, 2, 1000]) == 1.5
    assert interquartile_mean([9]) == 9


@pytest.mark.parametrize("data", range(5))
def test_the_probability_of_improvement_is_rliables(data: int) -> None:
    # Whole numbers below 5 make ties.
    ours, theirs = rng(data).integers(1, 5, size=7), rng(data + 100).integers(0, 4, size=4)
    expected = metrics.probability_of_improvement(ours[:, None], theirs[:, None])
    assert probability_of_improvement(ours, theirs) == pytest.approx(expected)


def test_ties_count_half() -> None:
    assert probability_of_improvement([5, 5], [5, 5]) == 0.5
    # 2 > 1; 2 = 2 and 1 = 1; 1 < 2.
    assert probability_of_improvement([1, 2], [1, 2]) == 0.25 + 0.5 / 2
    assert probability_of_improvement([3], [1, 2]) == 1
    assert probability_of_improvement([1], [1, 2]) == 0.25


def test_a_performance_profile_by_hand() -> None:
    values_SN = [[0, 10], [10, 20]]
    assert performance_profile(values_SN, [-1, 0, 5, 10, 15, 20, 21]).tolist() == [
        1, 1, 0.75, 0.75, 0.25, 0.25, 0,
    ]  # fmt: skip


def test_welchs_interval_is_scipys() -> None:
    ours, theirs = rng(0).normal(1, 3, 5), rng(1).normal(0, 1, 9)
    expected = scipy.stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.9)
    assert welch_interval(ours, theirs, 0.9) == pytest.approx(expected)
    assert welch_interval([2.0] * 5, [1.0] * 9, 0.9) == (1.0, 1.0)
    assert welch_interval([2.0, 2.0], [1.0] * 9, 0.9) == (-np.inf, np.inf)
    assert welch_interval([2.0], [1.0, 3.0], 0.9) == (-np.inf, np.inf)

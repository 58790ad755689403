import numpy as np
import pytest
import scipy.stats
from rliable import metrics

from fedhql.results.statistics import (
    RESAMPLES,
    bootstrap_band,
    bootstrap_interval,
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


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
    assert bootstrap_interval(values, rng(2), level=level) == pytest.approx(theirs, abs=tolerance)


def test_the_interval_of_two_seeds_by_hand() -> None:
    # Means of two draws from {0, 1}: 0, 1/2 and 1 with probabilities 1/4, 1/2 and 1/4.
    assert bootstrap_interval([0, 1], rng(), level=0.8) == (0, 1)
    assert bootstrap_interval([0, 1], rng(), level=0.4) == (0.5, 0.5)


def test_the_interval_covers_the_mean_as_often_as_theory_says() -> None:
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


def test_one_seed_gives_itself() -> None:
    assert bootstrap_interval([12.3], rng()) == (12.3, 12.3)


def test_a_higher_level_is_wider() -> None:
    values = rng().normal(size=8)
    low, high = bootstrap_interval(values, rng(1), level=0.8)
    lower, higher = bootstrap_interval(values, rng(1), level=0.95)
    assert lower < low < values.mean() < high < higher


def test_the_same_generator_gives_the_same_interval() -> None:
    values = rng().normal(size=8)
    assert bootstrap_interval(values, rng(1)) == bootstrap_interval(values, rng(1))
    assert bootstrap_interval(values, rng(1)) != bootstrap_interval(values, rng(2))


def test_a_band_is_an_interval_at_each_point() -> None:
    values_SG = rng().normal(size=(6, 3))
    low_G, high_G = bootstrap_band(values_SG, rng(1))
    for g, values_S in enumerate(values_SG.T):
        assert bootstrap_interval(values_S, rng(1)) == pytest.approx((low_G[g], high_G[g]))


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

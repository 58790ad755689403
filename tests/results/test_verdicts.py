"""The rule by which a statement is met, not met or undecided, on numbers made by hand."""

import numpy as np
import pytest
import scipy.stats

from fedhql.results.verdicts import (
    MET,
    NOT_MET,
    NOT_RUN,
    UNDECIDED,
    Evidence,
    Range,
    Verdict,
    correct,
    distance,
    weigh,
)

ABOVE_0 = Range(0, np.inf, 500)
CLOSE_TO_100 = Range(70, 130, 300)


def evidence(allowed: Range, **quantities: list[float]) -> Evidence:
    found = {name: np.array(values, dtype=float) for name, values in quantities.items()}
    return weigh(found, allowed, np.random.default_rng(0))


def verdict(allowed: Range, **quantities: list[float]) -> Verdict:
    found = evidence(allowed, **quantities)
    return Verdict("task", "statement", "5.2", allowed, found, found.p, "")


def test_a_range_in_words_and_what_is_missing_to_it() -> None:
    assert [str(Range(0, np.inf, 1)), str(Range(-np.inf, 195, 1)), str(CLOSE_TO_100)] == [
        "above 0",
        "below 195",
        "70 to 130",
    ]
    assert [CLOSE_TO_100.shortfall(value) for value in (40, 70, 100, 190)] == [0.1, 0, 0, 0.2]


def test_one_quantity_by_hand() -> None:
    found = evidence(ABOVE_0, gain=[1, 2, 3])
    # Mean 2, standard error 1 / sqrt(3): t = 3.46 with 2 degrees of freedom, p = 0.074.
    assert found.p == pytest.approx(2 * scipy.stats.t.sf(2 * np.sqrt(3), 2))
    assert found.p == pytest.approx(0.074, abs=1e-3)
    assert found.p_sign_flips == 2 * 1 / 8
    assert (found.holds, found.shortfall) == (True, 0)


def test_the_other_side_has_the_same_p() -> None:
    found = evidence(ABOVE_0, gain=[-100, -200, -300])
    assert found.p == pytest.approx(0.074, abs=1e-3)
    assert (found.holds, found.shortfall) == (False, 200 / 500)


def test_both_ends_of_a_range_must_be_clear() -> None:
    inside = evidence(CLOSE_TO_100, level=[100, 110, 120])
    # 110 is 20 from the nearer end, with a standard error of 10 / sqrt(3).
    assert inside.p == pytest.approx(2 * scipy.stats.t.sf(2 * np.sqrt(3), 2))
    assert inside.holds
    outside = evidence(CLOSE_TO_100, level=[140, 150, 160])
    assert outside.p == pytest.approx(inside.p)
    assert not outside.holds
    assert outside.shortfall == pytest.approx(20 / 300)


def test_the_weakest_of_several_quantities_decides_that_all_are_inside() -> None:
    alone = evidence(ABOVE_0, weak=[1, 2, 3])
    both = evidence(ABOVE_0, weak=[1, 2, 3], strong=[20, 21, 22])
    assert (both.p, both.holds) == (alone.p, True)


def test_the_strongest_decides_that_one_is_outside_and_pays_for_the_choice() -> None:
    alone = evidence(ABOVE_0, strong=[-20, -21, -22])
    both = evidence(ABOVE_0, strong=[-20, -21, -22], inside=[20, 21, 22])
    assert both.p == pytest.approx(2 * alone.p)
    assert not both.holds
    assert both.shortfall == 21 / 500


def test_three_verdicts_and_none() -> None:
    assert verdict(ABOVE_0, gain=[50, 51, 52, 50, 49]).status == MET
    assert verdict(ABOVE_0, gain=[-50, -51, -52, -50, -49]).status == NOT_MET
    assert verdict(ABOVE_0, gain=[50, 90, -20, 60, 10]).status == UNDECIDED
    assert verdict(ABOVE_0, gain=[50]).status == UNDECIDED  # one seed shows nothing
    assert Verdict("task", "statement", "5.2", ABOVE_0, None, None, "").status == NOT_RUN


def test_the_corrected_p_decides() -> None:
    found = evidence(ABOVE_0, gain=[50, 51, 52, 50, 49])
    assert found.p < 0.05
    assert Verdict("task", "statement", "5.2", ABOVE_0, found, 0.06, "").status == UNDECIDED


def test_a_verdict_tells_its_numbers() -> None:
    found = verdict(ABOVE_0, first=[50, 50, 50], second=[60, 60])
    assert found.ours == "first: 50 [3 equal seeds]; second: 60 [2 equal seeds]"
    assert found.seeds == 2


def test_only_what_was_run_is_corrected() -> None:
    assert correct([0.01, None, 0.03]) == [0.02, None, 0.03]
    assert correct([None]) == [None]


def test_a_distance_is_the_mean_shortfall_of_what_was_run() -> None:
    missing = Verdict("task", "statement", "5.2", ABOVE_0, None, None, "")
    short, met = verdict(ABOVE_0, gain=[-100, -100]), verdict(ABOVE_0, gain=[100, 100])
    assert distance([short, met, missing]) == pytest.approx(0.1)
    assert distance([missing]) is None


def test_a_quantity_on_the_edge_is_rarely_decided() -> None:
    """At the end of its range a statement is neither true nor false: 5 % are decided."""
    trials, rng = 2_000, np.random.default_rng(0)
    values = rng.normal(70, 20, (trials, 5))
    decided = np.mean(
        [verdict(CLOSE_TO_100, level=row.tolist()).status != UNDECIDED for row in values]
    )
    # Inside, the far end may also fail: at most 5 %. Four standard errors, once in 16,000.
    assert 0.02 < decided <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / trials)


def test_only_the_interval_of_a_share_is_cut() -> None:
    values_S = np.array([0.0, 1.0, 1.0])
    assert str(Range(0.5, np.inf, unit=1).estimate(values_S)) == "0.667 [0, 1]"
    assert str(Range(0.5, np.inf, unit=500).estimate(values_S)) == "0.667 [-0.768, 2.1]"

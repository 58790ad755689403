"""A reading from sums equals a reading from the values of every agent."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedhql.federation import RULES, moments, rule_named
from fedhql.federation.reading import FromSums, FromValues

NUMBERS = {"exploration": 3.0, "bound": 2.0, "confidence": 0.7, "trim": 1}
FROM_SUMS = [name for name, spec in RULES.items() if spec.from_sums is not None]
q_values = hnp.arrays(np.float64, (5, 4, 3), elements=st.floats(-100, 100))
CLOSE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-6}


@pytest.mark.parametrize("name", FROM_SUMS)
@given(
    q_NBA=q_values, targets_BA=hnp.arrays(np.float32, (4, 3), elements=st.floats(-9, 9, width=32))
)
def test_a_reading_from_sums_equals_one_from_all_values(
    name: str, q_NBA: Any, targets_BA: Any
) -> None:
    rule = rule_named(name, NUMBERS)
    values, sums = FromValues(q_NBA, (rule,)), FromSums(moments(q_NBA), rule)
    actions = np.array([0, 2, 1, 1])
    np.testing.assert_allclose(sums.scores(), values.scores(), **CLOSE)
    np.testing.assert_allclose(sums.centre(), values.centre(), **CLOSE)
    np.testing.assert_allclose(sums.lower_bound(0.7), values.lower_bound(0.7), **CLOSE)
    np.testing.assert_allclose(sums.chosen(actions), values.chosen(actions), **CLOSE)
    np.testing.assert_allclose(sums.loss(targets_BA), values.loss(targets_BA), **CLOSE)
    targets = targets_BA[:, 0]
    np.testing.assert_allclose(sums.loss(targets, actions), values.loss(targets, actions), **CLOSE)


def test_the_papers_rules_can_be_computed_from_sums() -> None:
    assert FROM_SUMS == ["mean-std", "bernstein"]


def test_one_of_several_rules_reads_as_that_rule_alone() -> None:
    """Lanes of one program choose their rule by a number."""
    rng = np.random.default_rng(0)
    q_NBA, weights_N = rng.normal(size=(5, 4, 3)), rng.uniform(size=5)
    rules = [rule_named(name, NUMBERS) for name in RULES]
    for number, rule in enumerate(rules):
        several = FromValues(q_NBA, rules, rule=number, weights_N=weights_N)
        alone = FromValues(q_NBA, (rule,), weights_N=weights_N)
        np.testing.assert_array_equal(several.scores(), alone.scores())
        np.testing.assert_array_equal(several.centre(), alone.centre())
        np.testing.assert_array_equal(several.lower_bound(0.5), alone.lower_bound(0.5))


@pytest.mark.parametrize("name", RULES)
def test_the_lower_bound_is_the_rules_centre_less_its_spread(name: str) -> None:
    q_NBA = np.random.default_rng(0).normal(size=(5, 4, 3))
    rule = rule_named(name, NUMBERS)
    weights_N = np.array([0.1, 0.2, 0.3, 0.4, 0.0]) if rule.weighted else None
    where = weights_N if rule.weighted else True
    centre_BA, spread_BA = rule.centre(q_NBA, where=where), rule.spread(q_NBA, where=where)
    reading = FromValues(q_NBA, (rule,), weights_N=weights_N)
    np.testing.assert_allclose(reading.lower_bound(2.0), centre_BA - 2 * spread_BA)
    np.testing.assert_array_equal(reading.lower_bound(0.0), reading.centre())


def test_without_pessimism_an_infinite_spread_does_not_count() -> None:
    q_NBA = np.array([1e30, -1e30], dtype=np.float32).reshape(2, 1, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        reading = FromValues(q_NBA, (rule_named("mean-std", NUMBERS),))
        assert reading.lower_bound(np.float32(0)).item() == 0
        assert reading.lower_bound(np.float32(1)).item() == -np.inf


# How far a lower bound may lie below the honest values, in units of their range.
LEVER = {"median-mad": 1.5, "sceptical": 1.5, "trimmed": 0.5, "hampel": 5.0}


@pytest.mark.parametrize("name", LEVER)
@given(
    honest_NBA=hnp.arrays(np.float64, (4, 2, 2), elements=st.floats(-100, 100)),
    lie_BA=hnp.arrays(np.float64, (2, 2), elements=st.floats(-1e9, 1e9)),
)
def test_one_liar_cannot_drag_a_robust_lower_bound_far_below_the_honest_values(
    name: str, honest_NBA: Any, lie_BA: Any
) -> None:
    """Pessimism subtracts the spread, which a liar may want to raise."""
    reading = FromValues(np.concatenate([honest_NBA, lie_BA[None]]), (rule_named(name, NUMBERS),))
    low_BA, high_BA = honest_NBA.min(axis=0), honest_NBA.max(axis=0)
    bound_BA = reading.lower_bound(1.0)
    assert np.all(bound_BA >= low_BA - LEVER[name] * (high_BA - low_BA) - 1e-6)
    assert np.all(bound_BA <= high_BA + 1e-6)


@pytest.mark.parametrize("name", sorted(RULES.keys() - LEVER.keys()))
def test_with_a_mean_one_liar_drags_the_lower_bound_anywhere(name: str) -> None:
    """Whichever way it lies; so pessimism needs another rule where members may lie."""
    honest_NBA = np.random.default_rng(0).uniform(90, 110, size=(4, 2, 2))
    for lie in (-1e6, 1e6):
        q_NBA = np.concatenate([honest_NBA, np.full((1, 2, 2), lie)])
        rule = rule_named(name, NUMBERS)
        reading = FromValues(q_NBA, (rule,), weights_N=np.ones(5) if rule.weighted else None)
        assert np.all(reading.lower_bound(1.0) < -1e5)

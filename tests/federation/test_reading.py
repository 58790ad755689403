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

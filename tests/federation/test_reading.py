"""What a server reads from sums is what it reads from everybody's values."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedhql.federation import OF_SUMS, RULES, Answers, PooledAnswers, moments, rule_named
from fedhql.federation.reading import reading_of

NAMES = ("ann", "bob", "cyd", "dan", "eve")
NUMBERS = SimpleNamespace(exploration=3.0, bound=2.0, confidence=0.7, trim=1)
q_values = hnp.arrays(np.float64, (5, 4, 3), elements=st.floats(-100, 100))
CLOSE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-6}


@pytest.mark.parametrize("name", OF_SUMS)
@given(
    q_NBA=q_values, targets_BA=hnp.arrays(np.float32, (4, 3), elements=st.floats(-9, 9, width=32))
)
def test_sums_are_enough(name: str, q_NBA: Any, targets_BA: Any) -> None:
    rule, everybody = rule_named(name, NUMBERS), tuple(range(5))
    values = reading_of(Answers(q_NBA, everybody, {}), rule, NAMES)
    sums = reading_of(PooledAnswers(moments(q_NBA), everybody, {}), rule, NAMES)
    actions = np.array([0, 2, 1, 1])
    np.testing.assert_allclose(sums.scores({}), values.scores({}), **CLOSE)
    np.testing.assert_allclose(sums.centre({}), values.centre({}), **CLOSE)
    np.testing.assert_allclose(sums.chosen(actions, {}), values.chosen(actions, {}), **CLOSE)
    np.testing.assert_allclose(sums.loss(targets_BA), values.loss(targets_BA), **CLOSE)
    targets = targets_BA[:, 0]
    np.testing.assert_allclose(sums.loss(targets, actions), values.loss(targets, actions), **CLOSE)


def test_for_which_rules_they_are_enough() -> None:
    of_sums = [name for name in RULES if rule_named(name, NUMBERS).scores_of is not None]
    assert of_sums == list(OF_SUMS)

"""The rules: centre, spread and scores of each are consistent."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedhql.federation import RULES, fed_ucb, fed_ucb_bernstein, mean_std, rule_named

q_values = hnp.arrays(
    np.float64,
    st.tuples(st.integers(3, 6), st.integers(1, 4), st.integers(1, 5)),
    elements=st.floats(-100, 100),
)
NUMBERS = {"exploration": 3.0, "bound": 2.0, "confidence": 0.7, "trim": 1}
EVERY_RULE = pytest.mark.parametrize("name", RULES)
WITH_EXPLORATION = [name for name, spec in RULES.items() if "exploration" in spec.numbers]


@given(q_values)
def test_mean_std_and_bernstein_equal_the_papers_equations(q: Any) -> None:
    practical, theoretical = (rule_named(name, NUMBERS) for name in ("mean-std", "bernstein"))
    np.testing.assert_array_equal(practical.scores(q), fed_ucb(q, 3.0))
    np.testing.assert_array_equal(theoretical.scores(q), fed_ucb_bernstein(q, 2.0, 0.7))
    for rule in (practical, theoretical):
        np.testing.assert_array_equal(rule.centre(q), q.mean(axis=0))
        np.testing.assert_array_equal(rule.spread(q), q.std(axis=0))


@pytest.mark.parametrize("name", WITH_EXPLORATION)
@given(q=q_values)
def test_scores_are_centre_plus_exploration_times_spread(name: str, q: Any) -> None:
    rule = rule_named(name, NUMBERS)
    expected = rule.centre(q) + 3.0 * rule.spread(q)
    np.testing.assert_allclose(rule.scores(q), expected, atol=1e-9)


@EVERY_RULE
@given(value=hnp.arrays(np.float64, (2, 3), elements=st.floats(-100, 100)))
def test_agents_that_agree_are_scored_as_in_the_paper(name: str, value: Any) -> None:
    q = np.stack([value] * 5)
    expected = fed_ucb_bernstein(q, 2.0, 0.7) if name == "bernstein" else fed_ucb(q, 3.0)
    np.testing.assert_allclose(rule_named(name, NUMBERS).scores(q), expected, atol=1e-9)


@EVERY_RULE
def test_agents_left_out_have_no_effect_on_scores(name: str) -> None:
    """The bonus of the bernstein rule does not count them either."""
    q = np.random.default_rng(0).normal(size=(5, 4, 3))
    there = np.array([True, False, True, True, False])
    masked = np.where(there[:, None, None], q, np.nan)
    rule = rule_named(name, NUMBERS)
    np.testing.assert_allclose(rule.scores(masked, where=there), rule.scores(q[there]))


def test_equal_weights_give_the_papers_rule() -> None:
    q = np.random.default_rng(0).normal(size=(5, 4, 3))
    rule = rule_named("bellman-weighted", NUMBERS)
    for weights in (True, np.full(5, 0.3)):
        np.testing.assert_allclose(rule.scores(q, where=weights), mean_std(3.0).scores(q))
    one = rule.scores(q, where=np.array([0.0, 0.0, 2.0, 0.0, 0.0]))
    np.testing.assert_allclose(one, q[2])


def test_a_sceptic_lowers_the_centre_of_five_agents() -> None:
    rule = rule_named("sceptical", {"exploration": 2.0})
    q = np.arange(1.0, 6)[:, None, None]
    assert rule.centre(q) == 2.5  # between the second and the third lowest
    away = 1.4826 * 1.5  # distances 0.5, 0.5, 1.5, 1.5, 2.5, and the sceptic's 2.5
    assert rule.spread(q) == pytest.approx(away)
    assert rule.scores(q) == pytest.approx(2.5 + 2 * away)


def test_as_many_sceptics_vote_if_absent_agents_are_masked() -> None:
    rule = rule_named("sceptical", {"exploration": 1.0})
    q_8 = np.random.default_rng(0).uniform(1, 9, size=(8, 2, 2))  # two sceptics; of seven, one
    masked = rule.scores(jnp.asarray(q_8), where=jnp.arange(8) < 7)
    np.testing.assert_allclose(masked, rule.scores(q_8[:7]), rtol=1e-5)

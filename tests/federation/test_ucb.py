"""FedUCB, compared with hand-computed numbers and by its properties."""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedhql.federation import fed_ucb, fed_ucb_bernstein

q_values = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(1, 5)),
    elements=st.floats(-100, 100),
)
exploration = st.floats(0, 10)

# Two agents, one state, two actions: means 2 and 5, population deviations 1 and 3.
TWO_AGENTS = np.array([[[1.0, 2.0]], [[3.0, 8.0]]])


def test_the_practical_rule_equals_hand_computed_numbers() -> None:
    np.testing.assert_allclose(fed_ucb(TWO_AGENTS, 0.5), [[2.5, 6.5]], rtol=1e-15)


def test_the_bernstein_rule_equals_hand_computed_numbers() -> None:
    # sqrt(2 · 2 · V / 2) + 3 · 10 · 2 / 2 with V = 1 and 9.
    expected = [[2 + math.sqrt(2) + 30, 5 + math.sqrt(18) + 30]]
    np.testing.assert_allclose(
        fed_ucb_bernstein(TWO_AGENTS, bound=10.0, confidence=2.0), expected, rtol=1e-15
    )


@given(q_values, exploration, st.randoms(use_true_random=False))
def test_agent_order_does_not_matter(q: Any, lam: float, random: Any) -> None:
    shuffled = q[random.sample(range(len(q)), len(q))]
    np.testing.assert_allclose(fed_ucb(shuffled, lam), fed_ucb(q, lam), atol=1e-9)
    np.testing.assert_allclose(
        fed_ucb_bernstein(shuffled, 1.0, 2.0), fed_ucb_bernstein(q, 1.0, 2.0), atol=1e-9
    )


@given(q_values)
def test_without_exploration_the_score_is_the_mean(q: Any) -> None:
    np.testing.assert_array_equal(fed_ucb(q, 0.0), q.mean(axis=0))


@given(q_values, exploration)
def test_one_agent_has_no_spread(q: Any, lam: float) -> None:
    np.testing.assert_array_equal(fed_ucb(q[:1], lam), q[0])
    np.testing.assert_allclose(fed_ucb_bernstein(q[:1], 2.0, lam), q[0] + 6 * lam, atol=1e-9)


@given(q_values, exploration)
def test_batch_rows_are_independent(q: Any, lam: float) -> None:
    rows = [fed_ucb(q[:, b : b + 1], lam) for b in range(q.shape[1])]
    np.testing.assert_array_equal(np.concatenate(rows), fed_ucb(q, lam))
    rows = [fed_ucb_bernstein(q[:, b : b + 1], 1.0, lam) for b in range(q.shape[1])]
    np.testing.assert_array_equal(np.concatenate(rows), fed_ucb_bernstein(q, 1.0, lam))


# Few shapes, because JAX compiles every operation again for each.
few_shapes = st.sampled_from([(1, 1, 1), (2, 3, 2), (5, 1, 4), (6, 4, 3)]).flatmap(
    lambda shape: hnp.arrays(np.float64, shape, elements=st.floats(-100, 100))
)


@given(few_shapes, exploration)
def test_numpy_and_jax_agree(q: Any, lam: float) -> None:
    q = q.astype(np.float32)
    for ours, theirs in (
        (fed_ucb(q, lam), fed_ucb(jnp.asarray(q), lam)),
        (fed_ucb_bernstein(q, 2.0, lam), fed_ucb_bernstein(jnp.asarray(q), 2.0, lam)),
    ):
        assert ours.dtype == np.float32
        assert isinstance(theirs, jnp.ndarray)
        np.testing.assert_allclose(ours, np.asarray(theirs), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("shape", [(3, 2), (0, 2, 2), (2, 3, 4, 5)])
def test_wrong_shapes_raise_an_error_that_names_the_axes(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="N agents, B states, A actions"):
        fed_ucb(np.zeros(shape), 1.0)


# The theorem promises |mean - μ| <= bonus with probability at least 1 - 3 exp(-c).
TRIALS = 20_000
DISTRIBUTIONS: dict[str, tuple[Callable[[Any, Any], Any], float]] = {
    "uniform": (lambda rng, size: rng.uniform(size=size), 0.5),
    "fair coin": (lambda rng, size: rng.integers(2, size=size).astype(float), 0.5),
    "rare one": (lambda rng, size: (rng.random(size) < 0.02).astype(float), 0.02),
    "arcsine": (lambda rng, size: rng.beta(0.5, 0.5, size=size), 0.5),
    "skewed": (lambda rng, size: rng.beta(0.2, 2.0, size=size), 1 / 11),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("confidence", [1.5, 3.0, 5.0])
@pytest.mark.parametrize("agents", [2, 5, 50, 1000])
def test_the_bernstein_bonus_covers_the_mean_as_often_as_promised(
    name: str, confidence: float, agents: int
) -> None:
    """A correct bonus fails a case with probability at most 3e-7 (5 standard errors)."""
    sample, expectation = DISTRIBUTIONS[name]
    bound = 7.0
    trials = TRIALS if agents < 1000 else TRIALS // 10
    rng = np.random.default_rng([agents, int(10 * confidence)])
    q_NBA = bound * sample(rng, (agents, trials, 1))
    mean_BA = q_NBA.mean(axis=0)
    bonus_BA = fed_ucb_bernstein(q_NBA, bound, confidence) - mean_BA
    covered = np.mean(np.abs(mean_BA - bound * expectation) <= bonus_BA)
    promised = 1 - 3 * math.exp(-confidence)
    assert covered >= promised - 5 * math.sqrt(promised * (1 - promised) / trials)

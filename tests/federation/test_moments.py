"""A cohort's moments give the same scores as all its answers."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from fedhql.federation import (
    fed_ucb,
    fed_ucb_bernstein,
    fed_ucb_bernstein_of,
    fed_ucb_of,
    moments,
)

VALUES = st.floats(-1e6, 1e6, allow_nan=False, width=32)
Q = st.tuples(st.integers(1, 12), st.integers(1, 3), st.integers(1, 3)).flatmap(
    lambda shape: arrays(np.float32, shape, elements=VALUES)
)


@given(Q, st.floats(0, 100))
def test_moments_give_the_scores_of_all_values(q_NBA: NDArray[Any], exploration: float) -> None:
    group, exact = moments(q_NBA), q_NBA.astype(np.float64)
    scale = 1e-9 * (1 + np.abs(exact).max())
    assert group.count == len(q_NBA)
    np.testing.assert_allclose(
        fed_ucb_of(group, exploration),
        fed_ucb(exact, exploration),
        atol=scale * (1 + exploration),
        rtol=1e-9,
    )
    np.testing.assert_allclose(
        fed_ucb_bernstein_of(group, 10.0, exploration),
        fed_ucb_bernstein(exact, 10.0, exploration),
        atol=scale * (1 + exploration),
        rtol=1e-9,
    )


def test_moments_computed_by_hand() -> None:
    """1, 2 and 6: mean 3, squared deviations 4 + 1 + 9."""
    group = moments(np.array([1.0, 2.0, 6.0]).reshape(3, 1, 1))
    assert group.mean_BA.item() == pytest.approx(3.0)
    assert group.m2_BA.item() == pytest.approx(14.0)
    assert fed_ucb_of(group, 2.0).item() == pytest.approx(3 + 2 * (14 / 3) ** 0.5)


def test_a_small_spread_around_a_large_value_survives() -> None:
    """A difference of sums of squares would lose the spread."""
    q_NBA = (1e6 + np.random.default_rng(0).normal(size=(1000, 1, 1))).astype(np.float64)
    assert moments(q_NBA).variance().item() == pytest.approx(q_NBA.var(), rel=1e-9)


def test_an_empty_cohort_has_no_moments() -> None:
    with pytest.raises(ValueError, match="N >= 1"):
        moments(np.empty((0, 2, 2)))

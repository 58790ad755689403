"""Values encoded as integers: their sums are exact up to rounding."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedhql.federation import moments
from fedhql.secure.fixed_point import (
    LARGEST_ERROR,
    FixedPoint,
    most_members,
    unusable,
    wrong_size,
)

BOUND = 1e6
MOST = most_members(BOUND)
up_to_a_million = st.floats(-BOUND, BOUND, width=32)
cohorts = st.integers(3, MOST).flatmap(
    lambda N: hnp.arrays(np.float32, (N, 2, 3), elements=up_to_a_million)
)


def summed(q_NBA: Any, fixed: FixedPoint) -> Any:
    return np.sum([fixed.encoded(q_BA) for q_BA in q_NBA], axis=0, dtype=np.uint64)


def exact(word: int, bits: int) -> Fraction:
    return Fraction(word, 2**bits)


@given(cohorts)
def test_sums_differ_from_the_exact_ones_by_at_most_two_to_the_minus_sixteen(q_NBA: Any) -> None:
    """The test uses exact arithmetic, because a float64 cannot resolve this at sums of 10¹²."""
    fixed = FixedPoint(len(q_NBA), BOUND)
    values, squares = summed(q_NBA, fixed)
    for b, a in np.ndindex(values.shape):
        plain = [Fraction(float(q)) for q in q_NBA[:, b, a]]
        value = exact(int(values.view(np.int64)[b, a]), fixed.value_bits)
        square = exact(int(squares[b, a]), fixed.square_bits)
        assert abs(value - sum(plain)) <= LARGEST_ERROR
        assert abs(square - sum(q * q for q in plain)) <= LARGEST_ERROR


@pytest.mark.parametrize("bound", [1.0, 37.5, 512.0, 1e3, 1e6])
@pytest.mark.parametrize("N", [3, 4, 5, 16, 1_024])
def test_the_largest_values_do_not_overflow(bound: float, N: int) -> None:
    """Some cohorts and bounds are powers of two, so that no room is left."""
    N = min(N, most_members(bound))
    for q in (bound, -bound):
        fixed = FixedPoint(N, bound)
        result = fixed.moments(summed(np.full((N, 1, 1), q, dtype=np.float32), fixed))
        assert result.mean_BA[0, 0] == pytest.approx(q, rel=1e-12)
        assert result.m2_BA[0, 0] == 0


@pytest.mark.parametrize(("bound", "most"), [(1e6, 17), (1e3, 17_000), (1e10, 0), (1e30, 0)])
def test_most_members_is_the_largest_size_within_the_error(bound: float, most: int) -> None:
    found = most_members(bound)
    assert found == pytest.approx(most, rel=0.3) if most else found == 0
    assert FixedPoint(found + 1, bound).largest_error > LARGEST_ERROR
    assert found == 0 or FixedPoint(found, bound).largest_error <= LARGEST_ERROR


@given(
    hnp.arrays(np.float32, (5, 2, 3), elements=st.floats(-500, 500, width=32)),
    st.sampled_from([1e6, 1e3]),
)
def test_moments_equal_those_of_the_plain_values(q_NBA: Any, bound: float) -> None:
    fixed = FixedPoint(5, bound)
    ours, plain = fixed.moments(summed(q_NBA, fixed)), moments(q_NBA)
    np.testing.assert_allclose(ours.mean_BA, plain.mean_BA, rtol=1e-12, atol=2**-38)
    # The rounding of the mean of squares, and one part in 2^50 of the numbers that cancel.
    tolerance = 2.0**-fixed.square_bits + float(np.abs(q_NBA).max()) ** 2 * 2.0**-50
    np.testing.assert_allclose(ours.variance(), plain.variance(), rtol=0, atol=tolerance)
    assert (ours.m2_BA >= 0).all()


@given(hnp.arrays(np.float32, (2, 3), elements=up_to_a_million))
def test_members_that_agree_have_zero_variance(q_BA: Any) -> None:
    """Rounding alone would give a spread, and λ times it would choose between equal actions."""
    fixed = FixedPoint(5, BOUND)
    assert not fixed.moments(summed([q_BA] * 5, fixed)).m2_BA.any()


@pytest.mark.parametrize(
    ("value", "why"),
    [(np.nan, "NaN or infinity"), (-np.inf, "NaN or infinity"), (1.5e6, "a value of 1.5e+06")],
)
def test_values_beyond_the_bound_and_nan_are_unusable(value: float, why: str) -> None:
    q_BA = np.zeros((2, 3), dtype=np.float32)
    assert unusable(q_BA, BOUND) is None
    q_BA[1, 1] = value
    assert why in str(unusable(q_BA, BOUND))


@pytest.mark.parametrize("bound", [1e25, 1e200, 1.7e308])
def test_bounds_that_leave_no_fraction_bits_are_refused(bound: float) -> None:
    assert "no room for fractions" in str(wrong_size(5, bound, "members"))

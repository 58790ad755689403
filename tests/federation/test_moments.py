"""Any tree of aggregators gives the server the scores it would have computed from all answers."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from fedhql.federation import (
    Moments,
    fed_ucb,
    fed_ucb_bernstein,
    fed_ucb_bernstein_of,
    fed_ucb_of,
    merged,
    moments,
)

VALUES = st.floats(-1e6, 1e6, allow_nan=False, width=32)
Q = st.tuples(st.integers(1, 12), st.integers(1, 3), st.integers(1, 3)).flatmap(
    lambda shape: arrays(np.float32, shape, elements=VALUES)
)


def tree(q_NBA: NDArray[Any], data: st.DataObject) -> Moments:
    """Of any shape and order: at every place a leaf, or a few branches."""
    N = len(q_NBA)
    if N == 1 or data.draw(st.booleans()):
        return moments(q_NBA)
    branches = data.draw(st.integers(2, min(N, 4)))
    cuts = sorted(data.draw(st.sets(st.integers(1, N - 1), min_size=branches - 1, max_size=3)))
    return merged(tree(part, data) for part in np.split(q_NBA, cuts))


@given(Q, st.data(), st.floats(0, 100))
def test_any_tree_gives_the_same_scores(
    q_NBA: NDArray[Any], data: st.DataObject, exploration: float
) -> None:
    shuffled = q_NBA[data.draw(st.permutations(range(len(q_NBA))))]
    group = tree(shuffled, data)
    exact = q_NBA.astype(np.float64)
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


def test_by_hand() -> None:
    """1, 2 and 6: mean 3, squared deviations 4 + 1 + 9."""
    one, two, six = (moments(np.full((1, 1, 1), value)) for value in (1.0, 2.0, 6.0))
    together = merged([six, merged([one, two])])
    assert together.count == 3
    assert together.mean_BA.item() == pytest.approx(3.0)
    assert together.m2_BA.item() == pytest.approx(14.0)
    assert fed_ucb_of(together, 2.0).item() == pytest.approx(3 + 2 * (14 / 3) ** 0.5)


def test_a_small_spread_around_a_large_value_survives() -> None:
    """Where sums of squares lose it."""
    q_NBA = (1e6 + np.random.default_rng(0).normal(size=(1000, 1, 1))).astype(np.float64)
    group = merged(moments(part) for part in np.split(q_NBA, 10))
    assert group.variance().item() == pytest.approx(q_NBA.var(), rel=1e-9)


def test_nobody_has_no_moments() -> None:
    with pytest.raises(ValueError, match="N >= 1"):
        moments(np.empty((0, 2, 2)))

"""Centres, spreads and weights, compared with loops over their formulas and by properties."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedhql.federation import pooling

shapes = st.tuples(st.integers(1, 7), st.integers(1, 3), st.integers(1, 4))
q_values = hnp.arrays(np.float64, shapes, elements=st.floats(-100, 100))
trims = st.one_of(st.floats(0.01, 0.49), st.integers(1, 3))
close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9)

POOLS: dict[str, Callable[..., Any]] = {
    "mean": pooling.mean,
    "std": pooling.std,
    "median": pooling.median,
    "mad": pooling.mad,
    "near mean": pooling.near_mean,
    "near std": pooling.near_std,
    "trimmed mean": partial(pooling.trimmed_mean, trim=1),
    "trimmed std": partial(pooling.trimmed_std, trim=1),
    "share trimmed mean": partial(pooling.trimmed_mean, trim=0.3),
    "share trimmed std": partial(pooling.trimmed_std, trim=0.3),
    "weighted mean": pooling.weighted_mean,
    "weighted std": pooling.weighted_std,
}
EVERY_POOL = pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)


def by_loop(q: Any, one: Callable[[list[float]], float]) -> Any:
    """Apply `one` to the agents' values at each state and action."""
    return np.array(
        [[one(q[:, b, a].tolist()) for a in range(q.shape[2])] for b in range(len(q[0]))]
    )


def middle(values: list[float]) -> float:
    ranked, half = sorted(values), len(values) // 2
    return ranked[half] if len(values) % 2 else (ranked[half - 1] + ranked[half]) / 2


def left_over(values: list[float], trim: float) -> list[float]:
    n = len(values)
    cut = min(int(trim) if trim >= 1 else math.floor(trim * n + 1e-4), (n - 1) // 2)
    return sorted(values)[cut : n - cut]


def mean_of(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def std_of(values: list[float]) -> float:
    centre = mean_of(values)
    return math.sqrt(mean_of([(value - centre) ** 2 for value in values]))


def test_pools_equal_hand_computed_numbers() -> None:
    q = np.array([1.0, 2.0, 3.0, 5.0, 100.0])[:, None, None]
    assert pooling.median(q) == 3
    assert pooling.mad(q) == pytest.approx(1.4826 * 2)  # distances 2, 1, 0, 2, 97
    assert pooling.trimmed_mean(q, 1) == pytest.approx(10 / 3)
    assert pooling.trimmed_mean(q, 0.2) == pytest.approx(10 / 3)
    assert pooling.trimmed_mean(q, 2) == 3
    assert pooling.trimmed_std(q, 1) == pytest.approx(math.sqrt(14 / 9))
    assert pooling.near_mean(q) == pytest.approx(11 / 4)  # all but 100 are within 3 · 1.4826 · 2
    assert pooling.near_std(q) == pytest.approx(math.sqrt(35 / 16))
    two_far_above = np.array([1.0, 2.0, 4.0, 1e6, 1e6])[:, None, None]
    assert pooling.median(two_far_above) == 4
    assert pooling.near_mean(two_far_above) == pytest.approx(7 / 3)
    weights = np.array([1.0, 0.0, 1.0, 2.0, 0.0])
    assert pooling.weighted_mean(q, where=weights) == pytest.approx(14 / 4)
    assert pooling.weighted_std(q, where=weights) == pytest.approx(math.sqrt(11 / 4))


@given(q_values)
def test_median_and_mad_equal_their_formulas(q: Any) -> None:
    close(pooling.median(q), by_loop(q, middle))

    def distance(values: list[float]) -> float:
        centre = middle(values)
        return 1.4826 * middle([abs(value - centre) for value in values])

    close(pooling.mad(q), by_loop(q, distance))


def test_sceptics_vote_0_one_for_every_five_agents_present() -> None:
    for n, sceptics in ((1, 1), (7, 1), (8, 2), (10, 2), (13, 3)):
        for agents in (n, 13):  # all of them, or n of 13
            there = np.arange(agents) < n
            among, present = pooling.with_sceptics(np.ones(agents), there)
            assert (present.sum() - n, (among[present] == 0).sum()) == (sceptics, sceptics)


@given(hnp.arrays(np.float64, shapes, elements=st.integers(-40, 40)))
def test_near_mean_and_near_std_use_only_values_near_the_median(q: Any) -> None:
    def near(values: list[float]) -> list[float]:
        centre = middle(values)
        most = 3 * 1.4826 * middle([abs(value - centre) for value in values])
        return [value for value in values if abs(value - centre) <= most]

    close(pooling.near_mean(q), by_loop(q, lambda values: mean_of(near(values))))
    close(pooling.near_std(q), by_loop(q, lambda values: std_of(near(values))), atol=1e-6)


@given(q_values, trims)
def test_trimmed_mean_and_std_use_the_values_left_after_trimming(q: Any, trim: float) -> None:
    close(
        pooling.trimmed_mean(q, trim), by_loop(q, lambda values: mean_of(left_over(values, trim)))
    )
    close(pooling.trimmed_std(q, trim), by_loop(q, lambda values: std_of(left_over(values, trim))))


@given(q_values, st.lists(st.floats(0.01, 100), min_size=7, max_size=7))
def test_weighted_mean_and_std_equal_their_formulas(q: Any, weights: list[float]) -> None:
    weights = weights[: len(q)]

    def centre(values: list[float]) -> float:
        pairs = zip(weights, values, strict=True)
        return math.fsum(weight * value for weight, value in pairs) / math.fsum(weights)

    def spread(values: list[float]) -> float:
        return math.sqrt(centre([(value - centre(values)) ** 2 for value in values]))

    close(pooling.weighted_mean(q, where=np.array(weights)), by_loop(q, centre))
    close(pooling.weighted_std(q, where=np.array(weights)), by_loop(q, spread), atol=1e-6)


@EVERY_POOL
@settings(max_examples=30)
@given(q=q_values, random=st.randoms(use_true_random=False))
def test_agent_order_does_not_matter(pool: Callable[..., Any], q: Any, random: Any) -> None:
    shuffled = q[random.sample(range(len(q)), len(q))]
    close(pool(shuffled), pool(q))


@EVERY_POOL
@settings(max_examples=30)
@given(q=q_values, there=st.lists(st.booleans(), min_size=7, max_size=7))
def test_masked_agents_have_no_effect(pool: Callable[..., Any], q: Any, there: list[bool]) -> None:
    mask = np.array(there[: len(q)])
    assume(mask.any())
    for whatever in (np.nan, -np.inf, 3.0):  # masked values may be anything
        masked = np.where(mask[:, None, None], q, whatever)
        close(pool(masked, where=mask), pool(q[mask]))
    flat = pool(masked[:, :, 0], where=mask)  # values at the chosen actions have one axis less
    close(flat, pool(masked, where=mask)[:, 0])


@EVERY_POOL
def test_numpy_and_jax_agree(pool: Callable[..., Any]) -> None:
    """They agree for every subset of agents, also if the others answer NaN."""
    q = np.random.default_rng(1).normal(size=(5, 4, 3)).astype(np.float32)
    traced = jax.jit(lambda q, mask: pool(q, where=mask))
    for number in range(1, 2**5):
        mask = np.array([number >> n & 1 == 1 for n in range(5)])
        masked = np.where(mask[:, None, None], q, np.nan)
        np.testing.assert_allclose(traced(masked, mask), pool(q[mask]), rtol=1e-5, atol=1e-5)


@given(q_values, st.integers(0, 6), st.sampled_from([-1e9, 1e9]), st.integers(1, 3))
def test_one_wild_agent_cannot_move_robust_centres_out_of_the_honest_range(
    q: Any, which: int, wild: float, trim: int
) -> None:
    assume(len(q) >= 3)
    honest = np.delete(q, which % len(q), axis=0)
    q = q.copy()
    q[which % len(q)] = wild
    low, high = honest.min(axis=0), honest.max(axis=0)
    for centre in (pooling.median(q), pooling.trimmed_mean(q, trim)):
        assert (low - 1e-9 <= centre).all()
        assert (centre <= high + 1e-9).all()
    assert (pooling.mad(q) <= 1.4826 * (high - low) + 1e-9).all()
    assert (pooling.trimmed_std(q, trim) <= high - low + 1e-9).all()


@pytest.mark.parametrize("name", POOLS)
@settings(max_examples=30)
@given(value=hnp.arrays(np.float64, (2, 3), elements=st.floats(-100, 100)))
def test_agents_that_agree_have_their_value_as_centre_and_no_spread(name: str, value: Any) -> None:
    spread = name.endswith(("std", "mad"))
    close(POOLS[name](np.stack([value] * 5)), 0 * value if spread else value)


@pytest.mark.parametrize("huge", [1e30, -1e30, 1e37])
@EVERY_POOL
def test_huge_finite_float32_values_stay_finite(pool: Callable[..., Any], huge: float) -> None:
    q = jnp.array([1.0, huge, 2.0, huge, -huge], dtype=jnp.float32)[:, None, None]
    if pool is pooling.std:
        return  # the paper's deviation squares without scaling
    assert np.isfinite(np.asarray(pool(q))).all()


@pytest.mark.parametrize(
    ("trim", "agents", "cut"),
    [
        (1, 5, 1),
        (2, 5, 2),
        (2, 3, 1),
        (3, 1, 0),
        (0.2, 5, 1),
        (0.1, 10, 1),
        (0.3, 10, 3),
        (0.4, 4, 1),
        (0.29, 100, 29),
        (0.49, 2, 0),
    ],
)
def test_the_number_of_agents_cut_follows_trim(trim: float, agents: int, cut: int) -> None:
    assert pooling.agents_cut(trim, agents, np) == cut
    assert pooling.agents_cut(jnp.float32(trim), jnp.int32(agents), jnp) == cut


transitions = st.integers(1, 6).flatmap(
    lambda B: st.tuples(
        hnp.arrays(np.float64, (3, B), elements=st.floats(-50, 50)),
        hnp.arrays(np.float64, (B,), elements=st.floats(-2, 2)),
        hnp.arrays(np.float64, (3, B, 2), elements=st.floats(-50, 50)),
        hnp.arrays(np.bool_, (B,)),
    )
)


@given(transitions)
def test_weights_follow_relative_bellman_errors(given_: Any) -> None:
    q_NB, rewards, next_q_NBA, terminated = given_
    expected = []
    for n in range(3):
        missed, size = [], []
        for b, reward in enumerate(rewards):
            future = 0.0 if terminated[b] else max(next_q_NBA[n, b])
            missed.append(abs(reward + 0.9 * future - q_NB[n, b]))
            size.append(abs(q_NB[n, b]))
        error = mean_of(missed) / (mean_of(size) + 1e-6)
        expected.append(1 / (error**2 + 0.01))
    found = pooling.bellman_weights(q_NB, rewards, next_q_NBA, terminated, discount=0.9)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@given(transitions, st.floats(0.01, 100))
def test_weights_do_not_depend_on_the_unit_of_reward(given_: Any, unit: float) -> None:
    q_NB, rewards, next_q_NBA, terminated = given_
    assume((np.abs(q_NB).mean(axis=1) > 1).all())  # else the guard against division by 0 matters
    weights = partial(pooling.bellman_weights, terminated=terminated, discount=0.9)
    there = weights(unit * q_NB, unit * rewards, unit * next_q_NBA)
    np.testing.assert_allclose(there, weights(q_NB, rewards, next_q_NBA), rtol=1e-3)


@given(transitions)
def test_masked_rows_and_terminal_states_have_no_effect_on_weights(given_: Any) -> None:
    q_NB, rewards, next_q_NBA, terminated = given_
    weights = partial(pooling.bellman_weights, discount=0.9)
    expected = weights(q_NB, rewards, next_q_NBA, terminated)
    wild = np.where(terminated[:, None], np.nan, next_q_NBA)
    longer = [
        np.concatenate([x, np.full_like(x[..., :1], np.nan)], axis=-1)
        for x in (q_NB, rewards, wild.transpose(0, 2, 1))
    ]
    there = np.arange(len(rewards) + 1) < len(rewards)
    found = weights(
        longer[0], longer[1], longer[2].transpose(0, 2, 1), np.append(terminated, 0), where=there
    )
    np.testing.assert_allclose(found, expected)


def test_a_diverged_agent_has_almost_no_weight_and_causes_no_nan() -> None:
    q_NB = jnp.array([[10.0], [1e30], [3e38], [np.nan]], dtype=jnp.float32)
    next_q = jnp.array([[10.0], [-1e30], [-3e38], [1.0]], dtype=jnp.float32)[:, :, None]
    weights = pooling.bellman_weights(q_NB, jnp.ones(1), next_q, jnp.zeros(1), discount=0.9)
    assert weights[0] > 50
    assert (np.asarray(weights[1:]) < 0.5).all()
    assert np.asarray(weights[2:]).tolist() == [0, 0]


def test_weights_among_usable_agents_are_equal_if_all_are_zero() -> None:
    weights, usable = np.array([3.0, 0.0, 2.0]), np.array([True, True, False])
    assert pooling.weights_among(weights, usable).tolist() == [3, 0, 0]
    unknown = np.array([0.0, 0.0, 2.0])
    assert pooling.weights_among(unknown, usable).tolist() == [1, 1, 0]


def test_the_smallest_floats_count_as_near_each_other() -> None:
    """Half of the smallest float is 0, so their median is 0."""
    q = np.full((2, 1, 1), 5e-324)
    assert pooling.near_mean(q) == pytest.approx(0)
    assert pooling.near_std(q) == pytest.approx(0)

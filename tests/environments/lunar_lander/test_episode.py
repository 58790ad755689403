"""Whole episodes of the twin: noise, saving, lanes and distributions."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedhql.environments.lanes import TwinLanes
from fedhql.environments.lunar_lander import noise
from fedhql.environments.lunar_lander.episode import START_DRAWS
from fedhql.environments.lunar_lander.twin import lunar_lander
from fedhql.environments.twin_batch import TwinBatch
from tests.environments.lunar_lander.distributions import (
    by_gymnasium,
    by_twin,
    p_values,
    policies,
)

TWIN = lunar_lander()
LANES = 100

pytestmark = pytest.mark.slow  # its programs take half a minute to compile


def test_noise_is_uniform_and_independent() -> None:
    """Six tests; a fair generator fails one of them with a probability of 1 %."""
    seeds = jnp.arange(400, dtype=jnp.uint32)[:, None] * jnp.uint32(7919)
    steps = jnp.arange(500)[None, :]
    first, second = (np.asarray(noise.uniform(seeds, steps, draw)) for draw in (0, 1))
    level = 0.01 / 6
    for draws in (first, second):
        assert (np.abs(draws) <= 1).all()
        assert stats.kstest(draws.ravel(), "uniform", (-1, 2)).pvalue > level
    pairs = [
        (first, second),  # the two draws of a step
        (first[:, 1:], first[:, :-1]),  # neighbouring steps
        (first[1:], first[:-1]),  # neighbouring seeds
        (second[:, 1:], first[:, :-1]),
    ]
    for left, right in pairs:
        assert stats.pearsonr(left.ravel(), right.ravel()).pvalue > level
    assert len(np.unique(first)) > 0.98 * first.size


def test_the_record_knows_how_many_draws_a_start_takes() -> None:
    assert TWIN.start_draws == START_DRAWS
    assert lunar_lander() is TWIN
    assert lunar_lander(enable_wind=True) is not TWIN


def test_a_saved_episode_goes_on_as_if_nothing_had_happened() -> None:
    """Save 40 steps before most crafts crash, and continue from JSON in a new batch."""
    batch, again = TwinBatch(TWIN, LANES), TwinBatch(TWIN, LANES)
    batch.reset(range(LANES))
    rng = np.random.default_rng(0)
    for _ in range(40):
        batch.step(rng.integers(4, size=len(batch.running)))
    again.go_to(json.loads(json.dumps(batch.position())))
    for _ in range(60):
        np.testing.assert_array_equal(batch.running, again.running)
        if not len(batch.running):
            break
        actions = rng.integers(4, size=len(batch.running))
        for left, right in zip(batch.step(actions), again.step(actions), strict=True):
            np.testing.assert_array_equal(left, right)


def test_lanes_do_not_influence_each_other() -> None:
    """Change every other lane; the results of the rest must not change in any bit."""
    lanes = TwinLanes(TWIN)
    step = jax.jit(lanes.step)
    episodes = jax.jit(lanes.begin)(jnp.arange(LANES, dtype=jnp.uint32))
    odd = np.arange(LANES) % 2 == 1
    other = episodes._replace(
        states=jnp.where(odd[:, None], episodes.states[::-1], episodes.states)
    )
    rng, running = np.random.default_rng(0), jnp.ones(LANES, dtype=bool)
    for _ in range(90):  # long enough for most to reach the ground
        actions = rng.integers(4, size=LANES)
        one = step(episodes, jnp.asarray(actions), running)
        two = step(other, jnp.asarray(np.where(odd, 0, actions)), running)
        for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
            np.testing.assert_array_equal(np.asarray(left)[~odd], np.asarray(right)[~odd])
        episodes, other = one.episodes, two.episodes


@pytest.mark.parametrize(
    ("name", "episodes"),
    [("random", 200), ("landing", 100)]
    + [pytest.param(name, 1_000, marks=pytest.mark.slow) for name in policies()],
)
def test_episodes_are_distributed_like_gymnasiums(name: str, episodes: int) -> None:
    """Compare returns, lengths and outcomes.

    If both are the same, one of the six quick tests fails with a probability of 1 %, and so does
    one of the 21 slow ones.
    """
    policy = policies()[name]()
    ours, theirs = by_twin(policy, episodes, LANES), by_gymnasium(policy, episodes)
    assert min(p_values(ours, theirs).values()) > 0.01 / (21 if episodes == 1_000 else 6)
    if name in ("landing", "trained"):
        assert ours.returns.mean() > 150
    else:
        assert ours.returns.mean() < -100

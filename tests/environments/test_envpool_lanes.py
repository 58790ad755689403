import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from fedhql.environments.batch import EnvironmentBatch
from fedhql.environments.compiled import ENVPOOL_ENVIRONMENTS
from fedhql.environments.envpool_lanes import SUPPORTED, EnvPoolLanes
from fedhql.environments.lanes import Lanes
from fedhql.errors import MissingExtra
from tests.environments.lunar_lander.policies import (
    POLICIES,
    Policy,
    hovering_policy,
)

(LANDER,) = SUPPORTED
Floats = NDArray[Any]

ENVPOOL = ENVPOOL_ENVIRONMENTS[LANDER]
needs_envpool = pytest.mark.skipif(
    not ENVPOOL.is_installed, reason="no EnvPool (pip install 'fedhql[envpool]')"
)


def test_the_error_of_a_missing_envpool_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    assert not ENVPOOL.is_installed
    with pytest.raises(MissingExtra, match=r"LunarLander-v3.*fedhql\[envpool\]"):
        EnvPoolLanes(LANDER)


def test_an_environment_that_was_not_compared_with_gymnasium_is_refused() -> None:
    with pytest.raises(ValueError, match="CartPole-v1"):
        EnvPoolLanes("CartPole-v1")


@needs_envpool
def test_sizes_equal_gymnasiums() -> None:
    lanes: Lanes = EnvPoolLanes(LANDER)
    env = gym.make(LANDER)
    assert (lanes.observation_size,) == env.observation_space.shape
    assert isinstance(env.action_space, gym.spaces.Discrete)
    assert lanes.action_count == env.action_space.n
    assert (lanes.start_draws, lanes.keeps_episodes) == (0, False)


@needs_envpool
def test_the_start_of_an_episode_depends_only_on_its_seed() -> None:
    lanes = EnvPoolLanes(LANDER)
    begin = jax.jit(lanes.begin)
    begun = np.asarray(begin(_seeds(3, 2**32 - 1, 9)))
    again = np.asarray(begin(_seeds(9, 5, 3, 3, 2**32 - 1)))
    np.testing.assert_array_equal(begun, again[[2, 4, 0]])
    np.testing.assert_array_equal(again[2], again[3])
    assert len(np.unique(again[:, 0])) == 4
    assert begun.dtype == np.float32


@needs_envpool
def test_one_compiled_program_works_with_new_pools() -> None:
    fall = _falling(EnvPoolLanes(LANDER), 150)
    first, other, again = fall(_seeds(1, 2)), fall(_seeds(3, 4)), fall(_seeds(1, 2))
    for left, right in zip(first, again, strict=True):
        np.testing.assert_array_equal(left, right)
    assert (first[0] != other[0]).any()


@needs_envpool
def test_only_running_lanes_are_stepped() -> None:
    """Lanes 0 and 2 run as if lane 1 did not exist, and lane 1 as if it had not waited."""
    lanes, pair, single = (EnvPoolLanes(LANDER) for _ in range(3))
    episodes = lanes.begin(_seeds(1, 2, 3))
    outer, middle = pair.begin(_seeds(1, 3)), single.begin(_seeds(2))
    waiting = np.asarray(episodes[1])
    for running_M in [[True, False, True], [False, False, False]] * 2:
        step = lanes.step(episodes, jnp.array([2, 3, 1]), jnp.array(running_M))
        np.testing.assert_array_equal(step.observations, step.episodes)
        np.testing.assert_array_equal(step.observations[1], waiting)
        for figure in (step.rewards, step.terminated, step.ended):
            assert not figure[1]
        if any(running_M):
            alone = pair.step(outer, jnp.array([2, 1]), jnp.ones(2, dtype=bool))
            outer = alone.episodes
            np.testing.assert_array_equal(step.rewards[jnp.array([0, 2])], alone.rewards)
        else:
            assert not step.rewards.any()
        np.testing.assert_array_equal(step.observations[jnp.array([0, 2])], outer)
        episodes = step.episodes
    together = lanes.step(episodes, jnp.array([0, 3, 0]), jnp.ones(3, dtype=bool))
    alone = single.step(middle, jnp.array([3]), jnp.ones(1, dtype=bool))
    np.testing.assert_array_equal(together.observations[1:2], alone.observations)


@needs_envpool
def test_go_on_keeps_open_episodes_and_restarts_the_others() -> None:
    """Lane 0 continues undisturbed; lane 1 starts again high up and falls."""
    lanes, alone = EnvPoolLanes(LANDER), EnvPoolLanes(LANDER)
    episodes, undisturbed = lanes.begin(_seeds(1, 2)), alone.begin(_seeds(1))
    for _ in range(2):
        for _ in range(45):
            episodes = lanes.step(episodes, *_all(0, 0)).episodes
            undisturbed = alone.step(undisturbed, *_all(0)).episodes
        assert episodes[1, 1] < 1.3
        episodes = lanes.go_on(episodes, jnp.array([True, False]), _seeds(3, 4))
        np.testing.assert_array_equal(episodes[:1], undisturbed)
        assert episodes[1, 1] > 1.3


@needs_envpool
def test_replaying_a_history_restores_the_episodes() -> None:
    first, second = EnvPoolLanes(LANDER), EnvPoolLanes(LANDER)
    episodes = first.begin(_seeds(1, 2**32 - 1, 3))
    for round_ in range(4):
        for n in range(30):
            running_M = jnp.array([True, n < 10, round_ < 2])
            episodes = first.step(episodes, jnp.array([2, n % 4, 1]), running_M).episodes
        episodes = first.go_on(episodes, jnp.array([True, round_ == 1, False]), _seeds(7, 8, 9))
    second.begin(_seeds(5))  # `replay` must discard these episodes
    second.replay(first.history())
    for left, right in zip(first.history(), second.history(), strict=True):
        np.testing.assert_array_equal(left, right)
    for _ in range(40):  # the engine's noise shows that the lanes' generators are restored, too
        one, other = (lanes.step(episodes, *_all(2, 2, 2)) for lanes in (first, second))
        np.testing.assert_array_equal(one.observations, other.observations)
        np.testing.assert_array_equal(one.rewards, other.rewards)


@needs_envpool
def test_only_ended_episodes_are_restarted() -> None:
    fall = _falling(EnvPoolLanes(LANDER), 300)
    begun, after, seen, rewards, terminated, ended = fall(_seeds(*range(5)))
    before = np.concatenate([begun[None], after[:-1]])
    assert ended.sum(axis=0).min() >= 2
    np.testing.assert_array_equal(terminated, ended)
    np.testing.assert_array_equal(rewards[ended], -100)
    np.testing.assert_array_equal(after[~ended], seen[~ended])
    # The last state of an ended episode is near the ground, the first of the next is high up.
    assert (seen[ended][:, 1] < 0.9).all()
    assert (after[ended][:, 1] > 1.3).all()
    assert not after[ended][:, 6:].any()
    # A step that did not start from the restarted state would not earn this reward.
    earned = _nearness(seen) - _nearness(before)
    np.testing.assert_allclose(rewards[~ended], earned[~ended], atol=2e-3)


@needs_envpool
@pytest.mark.parametrize("episodes", [200, pytest.param(1000, marks=pytest.mark.slow, id="1000")])
@pytest.mark.parametrize("policy", ["random", "landing"])
def test_returns_and_lengths_are_distributed_like_gymnasiums(policy: str, episodes: int) -> None:
    acts = POLICIES[policy]
    ours, theirs = _envpool_episodes(acts, episodes), _gymnasium_episodes(acts, episodes)
    # There are four tests: returns and lengths under two policies. If both environments are the
    # same, one of the four fails with a probability of 1 %, and one of the four means with 0.2 %.
    for left, right in zip(ours[:2], theirs, strict=True):
        assert _ks_distance(left, right) < math.sqrt(-math.log(0.01 / 4 / 2) / episodes)
        standard_error = math.sqrt((left.var() + right.var()) / episodes)
        assert abs(left.mean() - right.mean()) < 3.5 * standard_error
    # The two policies cover different parts of the game: crashes and landings.
    assert ours[0].mean() > 200 if policy == "landing" else ours[0].mean() < -150


@needs_envpool
def test_a_truncated_episode_ends_at_gymnasiums_limit_without_terminating() -> None:
    _, lengths, terminated = _envpool_episodes(hovering_policy, 5)
    assert lengths.tolist() == [gym.spec(LANDER).max_episode_steps] * 5
    assert not terminated.any()


@needs_envpool
def test_a_crash_on_the_last_allowed_step_is_terminated(monkeypatch: pytest.MonkeyPatch) -> None:
    import envpool

    ended = _falling(EnvPoolLanes(LANDER), 200)(_seeds(3))[-1]
    crash = int(np.argmax(ended)) + 1
    for limit, terminates in [(crash - 1, False), (crash, True)]:
        with monkeypatch.context() as patch:
            short = functools.partial(envpool.make_gymnasium, max_episode_steps=limit)
            patch.setattr(envpool, "make_gymnasium", short)
            fall = _falling(EnvPoolLanes(LANDER), limit)
        *_, terminated, ended = fall(_seeds(3))
        assert np.flatnonzero(ended).tolist() == [limit - 1]
        assert bool(terminated[-1]) is terminates


def _all(*actions: int) -> tuple[jax.Array, jax.Array]:
    return jnp.array(actions), jnp.ones(len(actions), dtype=bool)


def _seeds(*seeds: int) -> jax.Array:
    return jnp.array(seeds, dtype=jnp.uint32)


def _falling(lanes: EnvPoolLanes, steps: int) -> Callable[[jax.Array], tuple[Floats, ...]]:
    """Return a function of seeds that lets landers fall with their engines off.

    It returns the first observations, then the fields of `steps` Steps.
    """

    @jax.jit
    def fall(seeds_M: jax.Array) -> Any:
        off_M, no_draws = jnp.zeros(len(seeds_M), dtype=int), jnp.zeros((len(seeds_M), 0))

        def move(episodes: jax.Array, _: None) -> tuple[jax.Array, Any]:
            step = lanes.step_and_restart(episodes, off_M, no_draws)
            return step.episodes, step

        begun = lanes.begin(seeds_M)
        return begun, *jax.lax.scan(move, begun, length=steps)[1]

    return lambda seeds_M: tuple(np.asarray(figure) for figure in fall(seeds_M))


def _envpool_episodes(policy: Policy, episodes: int) -> tuple[Floats, Floats, Floats]:
    """Play an episode in each lane; return the returns, lengths and terminated flags."""
    lanes = EnvPoolLanes(LANDER)

    def move(carry: Any) -> Any:
        now, running, returns, lengths, terminated, key = carry
        key, drawing = jax.random.split(key)
        draws = jax.random.uniform(drawing, (episodes,))
        step = lanes.step(now, policy(lanes.observe(now), draws), running)
        returns = returns + jnp.where(running, step.rewards, 0)
        terminated = terminated | (running & step.terminated)
        still = running & ~step.ended
        return step.episodes, still, returns, lengths + running, terminated, key

    begun = lanes.begin(jnp.arange(episodes, dtype=jnp.uint32))
    all_M, none_M = jnp.ones(episodes, dtype=bool), jnp.zeros(episodes)
    carry = (begun, all_M, none_M, none_M, ~all_M, jax.random.key(0))
    _, _, *figures, _ = jax.lax.while_loop(lambda carry: carry[1].any(), move, carry)
    returns, lengths, terminated = (np.asarray(figure) for figure in figures)
    return returns, lengths, terminated


def _gymnasium_episodes(policy: Policy, episodes: int) -> tuple[Floats, Floats]:
    rng, at_once = np.random.default_rng(0), 100
    batch = EnvironmentBatch(LANDER, at_once)
    returns, lengths = np.zeros((2, episodes))
    for first in range(0, episodes, at_once):
        states = batch.reset(range(first, first + at_once))
        while len(batch.running):
            rows = first + batch.running
            states, rewards, _, ended = batch.step(policy(states, rng.random(len(rows))))
            returns[rows] += rewards
            lengths[rows] += 1
            states = states[~ended]
    batch.close()
    return returns, lengths


def _nearness(seen: Floats) -> Floats:
    """Return LunarLander's potential: near the pad, slow, upright, with legs on the ground."""
    x, y, x_speed, y_speed, angle, _, left, right = np.moveaxis(seen.astype(np.float64), -1, 0)
    away = np.hypot(x, y) + np.hypot(x_speed, y_speed) + np.abs(angle)
    return np.asarray(10 * (left + right) - 100 * away)


def _ks_distance(left: Floats, right: Floats) -> float:
    """Return the Kolmogorov-Smirnov distance between two samples."""
    points = np.concatenate([left, right])
    shares = [np.searchsorted(np.sort(s), points, side="right") / len(s) for s in (left, right)]
    return float(np.abs(shares[0] - shares[1]).max())

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedhql.environments.lanes import Lanes, TwinEpisodes, TwinLanes
from fedhql.environments.twins import TWINS

CARTPOLE = TwinLanes(TWINS["CartPole-v1"])


@pytest.mark.parametrize(
    ("env_id", "policy"),
    [
        ("CartPole-v1", lambda seen: (seen[:, 2] + seen[:, 3] > 0).astype(jnp.int32)),
        ("MountainCar-v0", lambda seen: jnp.ones(len(seen), dtype=jnp.int32)),
        ("Acrobot-v1", lambda seen: jnp.ones(len(seen), dtype=jnp.int32)),
    ],
)
def test_a_truncated_episode_ends_at_the_limit_without_terminating(
    env_id: str, policy: Callable[[jax.Array], jax.Array]
) -> None:
    """The policies keep the pole up, the car in the valley and the acrobot hanging."""
    lanes: Lanes = TwinLanes(TWINS[env_id])
    running_M = jnp.ones(3, dtype=bool)

    def move(episodes: TwinEpisodes, _: None) -> tuple[TwinEpisodes, tuple[jax.Array, jax.Array]]:
        step = lanes.step(episodes, policy(lanes.observe(episodes)), running_M)
        return step.episodes, (step.terminated, step.ended)

    begun = lanes.begin(jnp.arange(3, dtype=jnp.uint32))
    limit = TWINS[env_id].step_limit
    _, (terminated, ended) = jax.lax.scan(move, begun, length=limit)
    assert not terminated.any()
    assert not ended[:-1].any()
    assert ended[-1].all()


def test_only_ended_episodes_are_restarted() -> None:
    falling, fine, last = [2.39, 2.0, 0.0, 0.0], [0.1, 0.2, 0.03, -0.1], [0.0, 0.0, 0.01, 0.0]
    episodes = TwinEpisodes(jnp.array([falling, fine, last]), jnp.array([7, 8, 499]))
    actions_M = jnp.array([1, 0, 1])
    draws_MR = jax.random.uniform(jax.random.key(0), (3, 4))
    plain = CARTPOLE.step(episodes, actions_M, jnp.ones(3, dtype=bool))
    step = CARTPOLE.step_and_restart(episodes, actions_M, draws_MR)

    assert step.terminated.tolist() == [True, False, False]
    assert step.ended.tolist() == [True, False, True]
    assert step.rewards.tolist() == [1, 1, 1]
    assert step.episodes.elapsed.tolist() == [0, 9, 0]
    # Observations are the last ones of ended episodes; the new episodes are in `step.episodes`.
    np.testing.assert_array_equal(step.observations, plain.observations)
    assert float(step.observations[0, 0]) == pytest.approx(2.43)
    started = 0.1 * np.asarray(draws_MR) - 0.05
    after = CARTPOLE.observe(step.episodes)
    np.testing.assert_allclose(after[jnp.array([0, 2])], started[[0, 2]], atol=1e-7)
    np.testing.assert_array_equal(after[1], plain.observations[1])


def test_a_restarted_episode_runs_to_the_full_limit() -> None:
    lanes = TwinLanes(TWINS["MountainCar-v0"])
    idle, draws_MR = jnp.array([1]), jnp.array([[0.5]])

    def move(episodes: TwinEpisodes, _: None) -> tuple[TwinEpisodes, jax.Array]:
        step = lanes.step_and_restart(episodes, idle, draws_MR)
        return step.episodes, step.ended[0]

    _, ended = jax.lax.scan(move, lanes.begin(jnp.array([3], dtype=jnp.uint32)), length=600)
    assert np.flatnonzero(ended).tolist() == [199, 399, 599]


def test_lanes_do_not_influence_each_other() -> None:
    """Change the middle lane; the results of the outer two must not change in any bit."""
    step = jax.jit(CARTPOLE.step_and_restart)
    begun = CARTPOLE.begin(jnp.arange(3, dtype=jnp.uint32))
    other = begun._replace(states=begun.states.at[1].set(jnp.nan), elapsed=jnp.array([0, 90, 0]))
    rng, outer = np.random.default_rng(0), np.array([0, 2])
    for _ in range(60):  # long enough for every lane to fall
        actions_M, draws_MR = rng.integers(2, size=3), rng.random((3, 4), dtype=np.float32)
        ours = step(begun, actions_M, draws_MR)
        draws_MR[1], actions_M[1] = 0.9, 1 - actions_M[1]
        theirs = step(other, actions_M, draws_MR)
        for left, right in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_array_equal(left[outer], right[outer])
        begun, other = ours.episodes, theirs.episodes
    assert (begun.elapsed[outer] < 60).all()


@pytest.mark.parametrize("env_id", TWINS)
def test_the_start_of_an_episode_depends_only_on_its_seed(env_id: str) -> None:
    lanes = TwinLanes(TWINS[env_id])
    # Compiled, because the last bit may be rounded differently outside of jit.
    begin = jax.jit(lanes.begin)
    begun = begin(jnp.array([3, 2**32 - 1, 9], dtype=jnp.uint32))
    again = begin(jnp.array([9, 5, 3, 3, 2**32 - 1], dtype=jnp.uint32))
    np.testing.assert_array_equal(begun.states, again.states[jnp.array([2, 4, 0])])
    np.testing.assert_array_equal(again.states[2], again.states[3])
    assert len(np.unique(again.states[:, 0])) == 4
    assert not again.elapsed.any()
    assert lanes.observe(again).shape == (5, lanes.observation_size)

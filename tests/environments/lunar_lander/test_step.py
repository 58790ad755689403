"""Single steps from Box2D's own states."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from fedhql.environments.lunar_lander import episode
from fedhql.environments.lunar_lander.episode import START_DRAWS, Options
from tests.environments.lunar_lander.box2d import CALM, Pairs
from tests.environments.lunar_lander.policies import landing_policy, random_policy

M = 24
# The largest error of the median step and of 95 % of the steps, for poses and for velocities. A
# float32 rounds a pose by 1e-6. Where Box2D has not converged, a last bit decides the rest.
LIMITS = {
    "flight": ((1e-6, 3e-5), (1e-5, 3e-3)),
    "first contact": ((3e-6, 2e-3), (1e-4, 0.1)),
    "sliding": ((1e-6, 1e-4), (3e-5, 1e-2)),
    "on a slope": ((1e-6, 2e-3), (3e-5, 0.1)),
    "at rest": ((1e-6, 3e-5), (1e-5, 1e-3)),
}

pytestmark = pytest.mark.slow  # its programs take half a minute to compile


@pytest.fixture(scope="module")
def steps() -> dict[str, list[Any]]:
    """Play 24 landings and 24 random episodes; return the errors of all steps by situation."""
    found: dict[str, list[Any]] = {name: [] for name in (*LIMITS, "ended", "flags", "steps")}
    for number, policy in enumerate((landing_policy, random_policy)):
        rng = np.random.default_rng(number)
        pairs = Pairs(rng.random((M, START_DRAWS), dtype=np.float32))
        seen, running = pairs.seen, np.ones(M, dtype=bool)
        for _ in range(300):
            before = pairs.touching()
            theirs, ours = pairs.step(policy(seen, rng.random(M)))
            after = pairs.touching()
            poses, velocities = _errors(theirs, ours)
            for row in np.flatnonzero(running):
                found["steps"].append(1)
                if (ended := theirs.terminated[row]) or ours.terminated[row]:
                    results = theirs.rewards[row], ours.rewards[row], ours.terminated[row]
                    found["ended"].append((ended, *results))
                    continue
                slow = np.abs(theirs.observations[row, 2:6]).max() < 0.02
                level = np.abs(theirs.observations[row, 0]) < 0.2
                situation = "flight" if not (before[row] or after[row]) else "first contact"
                if before[row]:
                    situation = "sliding" if level else "on a slope"
                    situation = "at rest" if slow else situation
                found[situation].append((poses[row], velocities[row]))
                flags = theirs.observations[row, 6:] != ours.observations[row, 6:]
                found["flags"].append(flags.any())
            running &= ~theirs.terminated
            seen = theirs.observations
    return found


@pytest.mark.parametrize("situation", LIMITS)
def test_a_step_is_box2ds(steps: dict[str, list[Any]], situation: str) -> None:
    errors = np.array(steps[situation])
    assert len(errors) > 20
    for column, (median, most) in zip(errors.T, LIMITS[situation], strict=True):
        assert np.median(column) < median
        assert np.quantile(column, 0.95) < most


def test_episodes_end_as_in_gymnasium(steps: dict[str, list[Any]]) -> None:
    """Landings end with +100 and crashes with -100, on the same step."""
    ended = np.array(steps["ended"])
    assert (ended[:, 1] == 100).sum() >= 10
    assert (ended[:, 1] == -100).sum() >= 20
    same = (ended[:, 0] == ended[:, 3]) & (ended[:, 1] == ended[:, 2])
    assert (~same).sum() <= 1


def test_the_legs_flags_are_gymnasiums(steps: dict[str, list[Any]]) -> None:
    """A flag that differs once stays different until the leg lifts; 3 % of the steps may."""
    assert np.mean(steps["flags"]) < 0.03


def test_a_start_is_gymnasiums() -> None:
    draws = np.random.default_rng(2).random((M, START_DRAWS), dtype=np.float32)
    pairs = Pairs(draws)
    ours = np.stack(episode.observe(pairs.state), axis=1)
    np.testing.assert_allclose(ours, pairs.seen, atol=2e-6)


@pytest.mark.slow
def test_wind_is_gymnasiums() -> None:
    draws = np.random.default_rng(3).random((M, START_DRAWS), dtype=np.float32)
    options = Options(-10.0, True, 15.0, 1.5)
    pairs, calm = Pairs(draws, options), Pairs(draws, CALM)
    ours = np.stack(episode.observe(pairs.state), axis=1)
    np.testing.assert_allclose(ours, pairs.seen, atol=2e-6)
    assert np.abs(pairs.seen - calm.seen).max() > 1e-3
    for _ in range(40):
        poses, velocities = _errors(*pairs.step(np.full(M, 2)))
        calm_poses, calm_velocities = _errors(*calm.step(np.full(M, 2)))
        # Steps with wind are as exact as those without; a wrong wind of 15 moves 1e-3 in a step.
        assert np.median(poses) < 2 * np.median(calm_poses) + 1e-6
        assert velocities.max() < 2 * calm_velocities.max() + 1e-4
    assert jnp.all(episode.episode_of(pairs.state).wind_index > -9999)


def _errors(theirs: Any, ours: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the largest error (M,) of poses and of velocities, over hull and legs."""
    hull = np.abs(theirs.hull - ours.hull)
    legs = np.abs(theirs.legs - ours.legs).max(axis=1)
    both = np.maximum(hull, legs)
    return both[:, :3].max(axis=1), both[:, 3:].max(axis=1)

"""Twins stepped by a GPU kernel, which Pallas' interpreter runs here, against plain arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedhql.environments.kernels import start_lanes, state_size, step_lanes
from fedhql.environments.lunar_lander.twin import lunar_lander
from fedhql.environments.twins import TWINS, Twin

LANES = 12
# The interpreter's program computes the same operations, fused differently: a few roundings apart.
TOLERANCE = 1e-5


@pytest.mark.parametrize("env_id", TWINS)
def test_a_kernel_starts_and_steps_as_plain_arrays_do(env_id: str) -> None:
    _compare(TWINS[env_id], steps=30)


@pytest.mark.slow  # its programs take half a minute to compile
def test_a_kernel_lands_crafts_as_plain_arrays_do() -> None:
    """Random crafts crash, and those that drop from their start touch down first."""
    ended = _compare(lunar_lander(), steps=110)
    assert ended > LANES // 2


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")
def test_a_compiled_kernel_lands_crafts_as_the_interpreter_does() -> None:
    _compare(lunar_lander(), steps=110, interpret=False)


def _compare(twin: Twin, steps: int, *, interpret: bool = True) -> int:
    """Check each step from the same states; return how many episodes ended."""
    draws = np.random.default_rng(0).random((LANES, twin.start_draws), dtype=np.float32)
    plain_start, plain_step = jax.jit(twin.start), jax.jit(twin.step)
    step = jax.jit(lambda states, actions: step_lanes(twin, states, actions, interpret=interpret))
    states = np.asarray(start_lanes(twin, jnp.asarray(draws), interpret=interpret))
    assert states.shape == (LANES, state_size(twin))
    np.testing.assert_allclose(states, np.stack(plain_start(tuple(draws.T)), 1), atol=TOLERANCE)
    running, ended = np.ones(LANES, dtype=bool), 0
    rng = np.random.default_rng(1)
    for _ in range(steps):
        actions = rng.integers(twin.action_count, size=LANES).astype(np.int32)
        after, rewards, terminated = map(np.asarray, step(states, actions))
        want, want_rewards, want_terminated = plain_step(tuple(states.T), actions)
        scale = 1 + np.abs(after)
        gaps = np.abs(after - np.stack(want, 1)) / scale
        assert gaps[running].max() < 100 * TOLERANCE
        assert np.median(gaps[running]) < TOLERANCE
        np.testing.assert_allclose(
            rewards[running], np.asarray(want_rewards)[running], atol=100 * TOLERANCE
        )
        np.testing.assert_array_equal(terminated[running], np.asarray(want_terminated)[running])
        ended += int((terminated & running).sum())
        states, running = after, running & ~terminated
        if not running.any():
            break
    return ended

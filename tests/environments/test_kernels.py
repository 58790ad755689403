"""Twins stepped by a GPU kernel, which Pallas' interpreter runs here, against plain arrays."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedhql.environments.kernels import Stepped, start_lanes, state_size, step_lanes
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
    """Check each step from the same states, and restarts; return how many episodes ended."""
    rng = np.random.default_rng(0)
    draws = rng.random((LANES, twin.start_draws), dtype=np.float32)
    plain_start, plain_step = jax.jit(twin.start), jax.jit(twin.step)
    step: Any = jax.jit(partial(step_lanes, twin, interpret=interpret))
    states = np.asarray(start_lanes(twin, jnp.asarray(draws), interpret=interpret))
    assert states.shape == (LANES, state_size(twin))
    np.testing.assert_allclose(states, np.stack(plain_start(tuple(draws.T)), 1), atol=TOLERANCE)
    elapsed, count = np.zeros(LANES, dtype=np.int32), 0
    elapsed[0] = twin.step_limit - 3  # truncated soon
    for _ in range(steps):
        actions = rng.integers(twin.action_count, size=LANES).astype(np.int32)
        draws = rng.random(draws.shape, dtype=np.float32)
        after = Stepped(*step(states, elapsed, actions, draws))
        then, rewards, terminated = plain_step(tuple(states.T), actions)
        np.testing.assert_array_equal(after.terminated, terminated)
        ended = after.terminated | (elapsed + 1 >= twin.step_limit)
        np.testing.assert_array_equal(after.ended, ended)
        np.testing.assert_array_equal(after.elapsed, np.where(ended, 0, elapsed + 1))
        np.testing.assert_allclose(after.rewards, rewards, atol=100 * TOLERANCE)
        seen = np.stack(twin.observe(then), 1)
        np.testing.assert_allclose(after.observations, seen, atol=100 * TOLERANCE)
        fresh = np.stack(plain_start(tuple(draws.T)), 1)
        want = np.where(ended[:, None], fresh, np.stack(then, 1))
        gaps = np.abs(after.states - want) / (1 + np.abs(want))
        assert gaps.max() < 100 * TOLERANCE
        assert np.median(gaps) < TOLERANCE
        states, elapsed = np.asarray(after.states), np.asarray(after.elapsed)
        count += int(np.asarray(ended).sum())
    return count

"""A twin's functions as GPU kernels: a launch steps all lanes, one program for each.

A step of LunarLander is some thousand operations after each other. XLA makes a launch of every few
of them; here they are one launch. A lane's numbers have no axes, so its branches are real branches.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from fedhql.environments.twins import Numbers, Twin

Array = jax.Array


def start_lanes(twin: Twin, draws_MR: Array, *, interpret: bool = False) -> Array:
    """Return the states (M, S) that draws lead to; a CPU can interpret the kernel, slowly."""
    M = len(draws_MR)

    def run(draws: Any, states: Any) -> None:
        lane = pl.program_id(0)
        _write(states, lane, twin.start(_read(draws, lane, twin.start_draws)))

    states = jax.eval_shape(lambda: jnp.zeros((M, state_size(twin))))
    (states_MS,) = _launch(run, M, [states], interpret)(draws_MR)
    return jnp.asarray(states_MS)


def step_lanes(
    twin: Twin, states_MS: Array, actions_M: Array, *, interpret: bool = False
) -> tuple[Array, Array, Array]:
    """Return the states (M, S), the rewards (M,) and (M,) whether the episodes terminated."""
    M, S = states_MS.shape

    def run(states: Any, actions: Any, after: Any, rewards: Any, terminated: Any) -> None:
        lane = pl.program_id(0)
        state, reward, over = twin.step(_read(states, lane, S), actions[lane])
        _write(after, lane, state)
        rewards[lane] = reward
        terminated[lane] = over.astype(jnp.int32)

    rewards, terminated = jax.eval_shape(lambda: (jnp.zeros(M), jnp.zeros(M, jnp.int32)))
    shapes = [jax.typeof(states_MS), rewards, terminated]
    after, rewards, terminated = _launch(run, M, shapes, interpret)(states_MS, actions_M)
    return after, rewards, terminated > 0


def state_size(twin: Twin) -> int:
    """Return how many numbers a state has."""
    return len(jax.eval_shape(twin.start, (np.float32(0),) * twin.start_draws))


def _read(ref: Any, lane: Any, count: int) -> Numbers:
    return tuple(ref[lane, number] for number in range(count))


def _write(ref: Any, lane: Any, numbers: Numbers) -> None:
    for number, value in enumerate(numbers):
        ref[lane, number] = value


def _launch(run: Any, M: int, shapes: list[Any], interpret: bool) -> Any:
    return pl.pallas_call(
        run,
        grid=(M,),
        out_shape=shapes,
        interpret=interpret,
        compiler_params=triton.CompilerParams(num_warps=1, num_stages=1),
    )

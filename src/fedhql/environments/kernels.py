"""A twin's functions as GPU kernels: a launch steps all lanes, one program for each.

A step of LunarLander is some thousand operations after each other. XLA makes a launch of every few
of them; here they are one launch. A lane's numbers have no axes, so its branches are real branches.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from fedhql.environments import triton
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


class Stepped(NamedTuple):
    """M lanes after a step."""

    states: Array  # (M, S)
    elapsed: Array  # (M,)
    observations: Array  # (M, D) before a restart
    rewards: Array  # (M,)
    terminated: Array  # (M,)
    ended: Array  # (M,) terminated or truncated


def step_lanes(
    twin: Twin,
    states_MS: Array,
    elapsed_M: Array,
    actions_M: Array,
    draws_MR: Array | None = None,
    *,
    interpret: bool = False,
) -> Stepped:
    """Step all lanes. With draws, begin a new episode in each lane whose episode ended."""
    M, S = states_MS.shape
    restarts = draws_MR is not None
    given = (states_MS, elapsed_M, actions_M, *([draws_MR] if restarts else []))

    def run(states: Any, elapsed: Any, actions: Any, *rest: Any) -> None:
        results, lane = Stepped(*rest[restarts:]), pl.program_id(0)
        state, reward, terminated = twin.step(_read(states, lane, S), actions[lane])
        steps = elapsed[lane] + 1
        ended = terminated | (steps >= twin.step_limit)
        _write(results.observations, lane, twin.observe(state))
        if restarts:
            draws = _read(rest[0], lane, twin.start_draws)
            state, steps = restarted(twin, ended, state, draws), jnp.where(ended, 0, steps)
        _write(results.states, lane, state)
        results.elapsed[lane] = steps
        results.rewards[lane] = reward
        results.terminated[lane] = terminated.astype(jnp.int32)
        results.ended[lane] = ended.astype(jnp.int32)

    whole = jax.typeof(elapsed_M)
    observations, rewards = jax.eval_shape(
        lambda: (jnp.zeros((M, twin.observation_size)), jnp.zeros(M))
    )
    shapes = Stepped(jax.typeof(states_MS), whole, observations, rewards, whole, whole)
    after = Stepped(*_launch(run, M, list(shapes), interpret)(*given))
    return after._replace(terminated=after.terminated > 0, ended=after.ended > 0)


def restarted(twin: Twin, ended: Any, state: Numbers, draws: Numbers) -> Numbers:
    """Return the state of a new episode if this one ended, inside a kernel."""
    if not twin.is_costly:
        pairs = zip(twin.start(draws), state, strict=True)
        return tuple(jnp.where(ended, new, old) for new, old in pairs)
    # A branch cannot return constants, which many numbers of a start are.
    none = 0.0 * draws[0]
    return lax.cond(ended, lambda: tuple(n + none for n in twin.start(draws)), lambda: state)


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
        compiler_params=triton.compiler_params(warps=1),
    )

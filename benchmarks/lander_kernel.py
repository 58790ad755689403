"""A step of LunarLander as one GPU kernel: time of a launch, and the same results as plain XLA?

    PYTHONPATH=.:src python benchmarks/lander_kernel.py [--lanes 150 1024 1500]      # needs a GPU

Crafts fly at random or land by hand for 300 steps, with restarts, so that episodes are of all ages;
then 200 steps are timed inside one program. The same crafts take one step by plain XLA on the CPU.
"""

import argparse
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedhql.environments.lanes import TwinEpisodes, TwinLanes
from fedhql.environments.lunar_lander.twin import lunar_lander
from tests.environments.lunar_lander.policies import POLICIES

STEPS, RUNS = 200, 3
LANES = TwinLanes(lunar_lander())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lanes", type=int, nargs="*", default=[150, 1024, 1500, 8192])
    print(jax.devices()[0].device_kind)
    for policy in POLICIES:
        for M in parser.parse_args().lanes:
            episodes = jax.jit(LANES.begin)(jnp.arange(M, dtype=jnp.uint32))
            began = time.perf_counter()
            program = jax.jit(play, static_argnums=2).lower(episodes, 0, policy).compile()
            compiling = time.perf_counter() - began
            for number in range(2):
                episodes = program(episodes, number)
            episodes.states.block_until_ready()
            best = np.inf
            for number in range(RUNS):
                began = time.perf_counter()
                episodes = program(episodes, number)
                episodes.states.block_until_ready()
                best = min(best, time.perf_counter() - began)
            print(
                f"{policy}, {M} lanes: {best / STEPS * 1e3:.3f} ms a step, "
                f"{M * STEPS / best:,.0f} steps/s, compiled in {compiling:.1f} s",
                flush=True,
            )
        compare(episodes)


def play(episodes: TwinEpisodes, seed: jax.Array, policy: str) -> TwinEpisodes:
    M = len(episodes.elapsed)

    def move(episodes: TwinEpisodes, key: jax.Array) -> tuple[TwinEpisodes, None]:
        acting, starting = jax.random.split(key)
        draws_M = jax.random.uniform(acting, (M,))
        actions_M = POLICIES[policy](LANES.observe(episodes), draws_M)
        draws_MR = jax.random.uniform(starting, (M, LANES.start_draws))
        step = LANES.step_and_restart(episodes, actions_M.astype(jnp.int32), draws_MR, True)
        return step.episodes, None

    return jax.lax.scan(move, episodes, jax.random.split(jax.random.key(seed), STEPS))[0]


def compare(episodes: TwinEpisodes) -> None:
    """Print how far one step by the kernel and by plain XLA on the CPU are apart."""
    M = len(episodes.elapsed)
    actions = np.random.default_rng(0).integers(4, size=M).astype(np.int32)
    running = np.ones(M, dtype=bool)
    by_kernel = jax.jit(LANES.step)(episodes, jnp.asarray(actions), jnp.asarray(running))
    with jax.default_device(jax.devices("cpu")[0]):
        plain: Any = partial(LANES.twin.step)
        states = np.asarray(episodes.states)
        numbers = tuple(jnp.asarray(states[:, number]) for number in range(states.shape[1]))
        after, rewards, terminated = jax.jit(plain)(numbers, jnp.asarray(actions))
    over = states[:, -3] > 0
    gaps = np.abs(np.stack(after, 1) - np.asarray(by_kernel.episodes.states))[~over].max(axis=1)
    quantiles = np.quantile(gaps, [0.5, 0.9, 0.99, 1])
    print(
        f"  {M} crafts: largest difference of a state's numbers, quantiles .5 .9 .99 1: "
        f"{quantiles}; rewards {np.abs(np.asarray(rewards) - np.asarray(by_kernel.rewards)).max()}"
        f"; {int((np.asarray(terminated) != np.asarray(by_kernel.terminated)).sum())} ends differ",
        flush=True,
    )


if __name__ == "__main__":
    main()

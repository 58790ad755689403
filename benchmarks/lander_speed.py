"""How fast is LunarLander as a twin, as EnvPool's lanes, and in Gymnasium? Env steps a second.

    PYTHONPATH=. taskset -c 0 python benchmarks/lander_speed.py [--lanes 6 32 128]

All lanes step and restart in one compiled loop; Gymnasium steps one environment in Python. "random"
flies at random; "landing" lands by hand, so that more lanes are on the ground. Each figure is the
best of three runs of 200 steps, in CPU time, which other jobs on the machine change less than wall
time.
"""

import argparse
import platform
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from fedhql.environments.compiled import ENVPOOL_ENVIRONMENTS
from fedhql.environments.lanes import Lanes, TwinLanes
from fedhql.environments.lunar_lander.twin import lunar_lander
from tests.environments.lunar_lander.policies import POLICIES

STEPS, WARM_UP, RUNS = 200, 300, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lanes", type=int, nargs="*", default=[6, 32, 128])
    parser.add_argument("--policies", nargs="*", default=list(POLICIES))
    options = parser.parse_args()
    found: dict[str, Callable[[], Lanes]] = {
        "twin": lambda: TwinLanes(lunar_lander()),
    }
    envpool = ENVPOOL_ENVIRONMENTS["LunarLander-v3"]
    if envpool.is_installed:
        found["EnvPool"] = envpool.make_lanes
    print(platform.machine())
    for policy in options.policies:
        print(f"{policy}, Gymnasium: {by_gymnasium(policy):,.0f} steps/s", flush=True)
        for M in options.lanes:
            for name, make_lanes in found.items():
                compiling, rate = measured(make_lanes(), M, policy)
                print(
                    f"{policy}, {M} lanes, {name}: {rate:,.0f} steps/s, compiled in "
                    f"{compiling:.0f} s",
                    flush=True,
                )


def measured(lanes: Lanes, M: int, policy: str) -> tuple[float, float]:
    """Return the seconds to compile, and the steps a second."""

    def play(episodes: Any, key: jax.Array, steps: int) -> Any:
        def move(episodes: Any, key: jax.Array) -> tuple[Any, None]:
            acting, starting = jax.random.split(key)
            draws_M = jax.random.uniform(acting, (M,))
            actions_M = POLICIES[policy](lanes.observe(episodes), draws_M)
            draws_MR = jax.random.uniform(starting, (M, lanes.start_draws))
            step = lanes.step_and_restart(episodes, actions_M.astype(jnp.int32), draws_MR, True)
            return step.episodes, None

        return jax.lax.scan(move, episodes, jax.random.split(key, steps))[0]

    key = jax.random.key(0)
    episodes = jax.jit(lanes.begin)(jnp.arange(M, dtype=jnp.uint32))
    began = time.process_time()
    program = jax.jit(play, static_argnums=2).lower(episodes, key, STEPS).compile()
    compiling = time.process_time() - began
    for _ in range(-(-WARM_UP // STEPS)):  # until the episodes are of all ages
        episodes = program(episodes, key)
    best = float("inf")
    np.asarray(lanes.observe(episodes))
    for run in range(RUNS):
        began = time.process_time()
        episodes = program(episodes, jax.random.key(run))
        np.asarray(lanes.observe(episodes))  # wait for the end
        best = min(best, time.process_time() - began)
    return compiling, M * STEPS / best


def by_gymnasium(policy: str) -> float:
    """Return the steps a second of one environment, best of three runs of 3,000 steps."""
    env: Any = gym.make("LunarLander-v3", disable_env_checker=True)
    rng = np.random.default_rng(0)
    seen, _ = env.reset(seed=0)
    best = float("inf")
    for _ in range(RUNS):
        spent = 0.0
        for _ in range(15 * STEPS):
            action = int(POLICIES[policy](seen[None], rng.random(1))[0])
            began = time.process_time()
            seen, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                seen, _ = env.reset()
            spent += time.process_time() - began
        best = min(best, spent)
    return 15 * STEPS / best


if __name__ == "__main__":
    main()

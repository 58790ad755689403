"""Print how many steps a second both implementations of the patient do: python speed.py

Actions are random, and a step is a decision.
"""

import time
from functools import partial

import gymnasium as gym
import jax
import numpy as np

from fedhql.environments.compiled import find_twin
from fedhql.environments.lanes import Episodes, TwinLanes, begin_episodes
from fedhql.environments.twins import Twin

EPISODE = 200


def gymnasium_speed(episodes: int = 5) -> float:
    env = gym.make("hiv:HIV-v0")
    actions = np.random.default_rng(0).integers(4, size=(episodes, EPISODE))
    env.reset(seed=0)
    env.step(0)  # compiles
    began = time.perf_counter()
    for row in actions:
        env.reset(seed=0)
        for action in row:
            env.step(action)
    return actions.size / (time.perf_counter() - began)


@partial(jax.jit, static_argnums=0)
def play(lanes: TwinLanes, episodes: Episodes, actions: jax.Array) -> Episodes:
    def step(now: Episodes, row: jax.Array) -> tuple[Episodes, None]:
        return lanes.step(now, row, row >= 0).episodes, None

    return jax.lax.scan(step, episodes, actions)[0]


def twin_speed(twin: Twin, lane_count: int) -> float:
    lanes = TwinLanes(twin)
    episodes = begin_episodes(lanes, jax.numpy.arange(lane_count, dtype=jax.numpy.uint32))
    actions = jax.numpy.asarray(
        np.random.default_rng(0).integers(4, size=(EPISODE, lane_count), dtype=np.int32)
    )
    play(lanes, episodes, actions).states.block_until_ready()
    began = time.perf_counter()
    play(lanes, episodes, actions).states.block_until_ready()
    return actions.size / (time.perf_counter() - began)


if __name__ == "__main__":
    twin = find_twin("hiv:HIV-v0", None, "hiv:twin")
    assert twin is not None
    print(f"Gymnasium: {gymnasium_speed():,.0f} steps/s")
    for lane_count in (1, 8, 64):
        print(f"twin, {lane_count} at once: {twin_speed(twin, lane_count):,.0f} steps/s")

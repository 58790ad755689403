"""The 180 velocity iterations of LunarLander's contacts as one GPU kernel, against XLA's loop.

    python benchmarks/lander_kernel.py [--lanes 1024]      # needs a GPU

The kernel runs the same functions with legs and edges as separate arrays, a block of lanes each.
Crafts are taken from episodes that land, so that most of them touch the ground.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from fedhql.environments.lunar_lander import contact_solver, episode, joints, step, touch
from fedhql.environments.lunar_lander.craft import GRAVITY, VELOCITY_ITERATIONS
from fedhql.environments.lunar_lander.engines import Load

CALLS = 100  # in one program, so that launches do not wait for Python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lanes", type=int, default=1024)
    M = parser.parse_args().lanes
    moving, joint, contacts = crafts_on_the_ground(M)
    by_xla = jax.jit(step._iterated)
    want = separate(by_xla(moving, joint, contacts))
    print(f"{M} lanes; XLA's loop: {milliseconds(by_xla, (moving, joint, contacts)):.3f} ms")
    parts = (separate(moving), separate_joint(joint), separate_contacts(contacts))
    for block, warps in ((16, 1), (32, 1), (64, 2), (128, 4)):
        kernel = iterated_in_a_kernel(parts, M, block, warps)
        got = kernel(parts)
        off = max(
            float(jnp.abs(a - b).max()) for a, b in zip(got, jax.tree.leaves(want), strict=True)
        )
        print(
            f"kernel, blocks of {block}, {warps} warps: {milliseconds(kernel, (parts,)):.3f} ms, "
            f"largest difference {off:g}"
        )


def crafts_on_the_ground(M: int) -> tuple[Any, Any, Any]:
    """Return what the velocity iterations start with, after 230 steps of landing."""
    options = episode.Options(GRAVITY, False, 15.0, 1.5)
    draws = jax.random.uniform(jax.random.key(0), (episode.START_DRAWS, M))

    def fly(states: jax.Array, _: None) -> tuple[jax.Array, None]:
        found = episode.episode_of(states)
        actions = land(episode.observed(found.world))
        after = episode.stepped_lanes(options, states, actions)[0]
        return jnp.where(found.over, states, after), None

    @jax.jit
    def prepared(states: jax.Array) -> tuple[Any, Any, Any]:
        world = episode.episode_of(lax.scan(fly, states, None, length=230)[0]).world
        manifold, touching, _ = touch.updated(world.legs, world.heights, world.touch, world.ground)
        contacts = contact_solver.prepared(manifold)
        none = Load(*[jnp.zeros(M)] * 3)
        moving, joint = step._accelerated(world, none, GRAVITY, contacts, touching.impulses)
        return moving, joint, contacts

    found: tuple[Any, Any, Any] = prepared(episode.started(options, draws))
    return found


def land(seen: jax.Array) -> jax.Array:
    """Return the actions of Gymnasium's heuristic."""
    x, y, x_speed, y_speed, angle, spin, left, right = seen
    turn = (jnp.clip(0.5 * x + x_speed, -0.4, 0.4) - angle) * 0.5 - spin
    lift = (0.55 * jnp.abs(x) - y) * 0.5 - y_speed * 0.5
    down = (left > 0) | (right > 0)
    turn, lift = jnp.where(down, 0.0, turn), jnp.where(down, -y_speed * 0.5, lift)
    sideways = jnp.where(turn < -0.05, 3, jnp.where(turn > 0.05, 1, 0))
    return jnp.where((lift > jnp.abs(turn)) & (lift > 0.05), 2, sideways)


def entry(tree: Any, *index: int) -> Any:
    return jax.tree.map(lambda array: array[index], tree)


def separate_joint(joint: Any) -> Any:
    return [entry(joint, leg) for leg in (0, 1)]


def separate_contacts(contacts: Any) -> Any:
    return [[entry(contacts, edge, leg) for leg in (0, 1)] for edge in (0, 1)]


def separate(moving: Any) -> Any:
    """Return hull, legs, joint impulses and contact impulses, in arrays (M,)."""
    return (
        moving.hull,
        [entry(moving.legs, leg) for leg in (0, 1)],
        [entry(moving.joints, leg) for leg in (0, 1)],
        separate_contacts(moving.contacts),
    )


def iterated_in_a_kernel(parts: Any, M: int, block: int, warps: int) -> Callable[[Any], Any]:
    leaves, tree = jax.tree.flatten(parts)
    results = jax.tree.leaves(parts[0])

    def whole(array: jax.Array) -> jax.Array:
        return array.astype(jnp.int32) if array.dtype == jnp.bool_ else array

    def run(*references: Any) -> None:
        read = [reference[...] for reference in references[: len(leaves)]]
        given = zip(read, leaves, strict=True)
        typed = [array != 0 if leaf.dtype == jnp.bool_ else array for array, leaf in given]
        moving, joint, contacts = jax.tree.unflatten(tree, typed)

        def iteration(_: Any, carry: Any) -> Any:
            hull, legs, impulses, on_ground = carry
            legs, impulses = list(legs), list(impulses)
            on_ground = [list(edge) for edge in on_ground]
            for leg in (1, 0):  # Box2D takes the newest joint first
                sign = jnp.float32(2 * leg - 1)
                impulses[leg], hull, legs[leg] = joints.solved(
                    sign, joint[leg], impulses[leg], hull, legs[leg]
                )
            for edge in (0, 1):
                for leg in (0, 1):
                    on_ground[edge][leg], legs[leg] = contact_solver.solved(
                        contacts[edge][leg], on_ground[edge][leg], legs[leg]
                    )
            return hull, legs, impulses, on_ground

        after = lax.fori_loop(0, VELOCITY_ITERATIONS, iteration, moving)
        written = references[len(leaves) :]
        for reference, array in zip(written, jax.tree.leaves(after), strict=True):
            reference[...] = array

    lanes = pl.BlockSpec((block,), lambda program: (program,))
    call = pl.pallas_call(
        run,
        grid=(M // block,),
        in_specs=[lanes] * len(leaves),
        out_specs=[lanes] * len(results),
        out_shape=[jax.typeof(array) for array in results],
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=1),
    )
    return jax.jit(lambda given: call(*map(whole, jax.tree.leaves(given))))


def milliseconds(function: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
    """Return the time of one call inside a program of many."""

    @jax.jit
    def many(given: tuple[Any, ...]) -> Any:
        def once(given: tuple[Any, ...], _: None) -> tuple[Any, Any]:
            return given, jax.tree.leaves(function(*given))[0].sum()

        return lax.scan(once, given, None, length=CALLS)[1]

    many(arguments).block_until_ready()
    begun = time.perf_counter()
    many(arguments).block_until_ready()
    return (time.perf_counter() - begun) / CALLS * 1e3


if __name__ == "__main__":
    main()

"""The rules of LunarLander: start, step, observation, reward and termination.

A state is 83 numbers (float32), so that it can be saved like the state of any other twin. Whole
numbers in it are below 2^24 and therefore exact. The functions step one episode, whose numbers have
no axes, or M episodes, whose numbers are arrays (M,).
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedhql.environments.lunar_lander import noise
from fedhql.environments.lunar_lander.blocks import replaced
from fedhql.environments.lunar_lander.contact_solver import ContactImpulses
from fedhql.environments.lunar_lander.craft import (
    FRAMES_PER_SECOND,
    HEIGHT,
    HULL_CENTRE,
    LEG_ANGLE,
    LEG_AWAY,
    LEG_DOWN,
    LEG_SIGNS,
    MOST_START_FORCE,
    WIDTH,
)
from fedhql.environments.lunar_lander.engines import LEFT, MAIN, RIGHT, Load, fired, wind
from fedhql.environments.lunar_lander.geometry import Array, Pose, Velocity, rotation
from fedhql.environments.lunar_lander.joints import JointImpulses
from fedhql.environments.lunar_lander.step import (
    Outcome,
    is_near_ground,
    stepped,
    stepped_in_flight,
)
from fedhql.environments.lunar_lander.terrain import (
    CHUNKS,
    HEIGHT_DRAWS,
    HIGHEST_DRAW,
    PAD_HEIGHT,
    Heights,
    terrain,
)
from fedhql.environments.lunar_lander.touch import Touch
from fedhql.environments.lunar_lander.world import Leg, World
from fedhql.environments.twins import Numbers

START_DRAWS = HEIGHT_DRAWS + 2 + 2 + 2  # heights, force, seed, wind and turbulence
_HALF = 2**16  # a seed is two whole numbers below this


class Options(NamedTuple):
    """Gymnasium's options of the same names."""

    gravity: float
    enable_wind: bool
    wind_power: float
    turbulence_power: float


class Episode(NamedTuple):
    """The state of an episode."""

    world: World
    shaping: Array  # the potential that rewards are differences of
    seed_high: Array  # of the engines' noise
    seed_low: Array
    step: Array  # steps since the start
    over: Array  # True after the episode has terminated
    wind_index: Array
    torque_index: Array


def start(options: Options, draws: Numbers) -> Numbers:
    """Return the state that START_DRAWS uniform draws in [0, 1) lead to, as Gymnasium's `reset`."""
    heights = terrain([HIGHEST_DRAW * draw for draw in draws[:HEIGHT_DRAWS]])
    force_x, force_y, *rest = draws[HEIGHT_DRAWS:]
    seed_high, seed_low = (jnp.floor(draw * _HALF) for draw in rest[:2])
    wind_index, torque_index = (jnp.floor(draw * (2 * 9999)) - 9999 for draw in rest[2:])
    none = jnp.zeros_like(seed_high)
    first = Episode(
        at_start(heights), none, seed_high, seed_low, none, none > 0, wind_index, torque_index
    )
    load, wind_index, torque_index = _wind(options, first)
    load = load._replace(
        force_x=load.force_x + MOST_START_FORCE * (2 * force_x - 1),
        force_y=load.force_y + MOST_START_FORCE * (2 * force_y - 1),
    )
    world = stepped_in_flight(first.world, load, options.gravity).world
    return numbers_of(
        first._replace(
            world=world,
            shaping=potential(observed(world)),
            wind_index=wind_index,
            torque_index=torque_index,
        )
    )


def step(options: Options, state: Numbers, action: Array) -> tuple[Numbers, Array, Array]:
    """Return the state after one step, the reward and whether the episode has terminated."""
    episode = episode_of(state)
    world = episode.world
    draws = noise_of(episode)
    velocity = fired(world.hull, rotation(world.hull.angle), world.hull_velocity, action, draws)
    load, wind_index, torque_index = _wind(options, episode)
    outcome = _stepped_world(options, world._replace(hull_velocity=velocity), load, episode.over)

    seen = observed(outcome.world)
    shaping = potential(seen)
    is_side = (action == LEFT) | (action == RIGHT)
    fuel = 0.3 * (action == MAIN).astype(jnp.float32) + 0.03 * is_side.astype(jnp.float32)
    lost = outcome.crashed | (jnp.abs(seen[0]) >= 1.0)
    reward = jnp.where(lost, -100.0, shaping - episode.shaping - fuel)
    reward = jnp.where(outcome.asleep, 100.0, reward)
    terminated = lost | outcome.asleep
    after = episode._replace(
        world=outcome.world,
        shaping=shaping,
        step=episode.step + 1,
        over=episode.over | terminated,
        wind_index=wind_index,
        torque_index=torque_index,
    )
    return numbers_of(after), reward, terminated


def observe(state: Numbers) -> Numbers:
    """Return the eight numbers that Gymnasium shows."""
    return observed(episode_of(state).world)


def noise_of(episode: Episode) -> tuple[Array, Array]:
    """Return the two draws of the engines' noise in this step."""
    high, low = (seed.astype(jnp.int32) for seed in (episode.seed_high, episode.seed_low))
    seed = high.astype(jnp.uint32) * np.uint32(_HALF) + low.astype(jnp.uint32)
    number = episode.step.astype(jnp.int32)
    return noise.uniform(seed, number, 0), noise.uniform(seed, number, 1)


def observed(world: World) -> Numbers:
    hull, velocity, r = world.hull, world.hull_velocity, rotation(world.hull.angle)
    # Gymnasium's position is the origin of the hull, its velocity that of the centre of mass.
    x, y = hull.x + r.sin * HULL_CENTRE, hull.y - r.cos * HULL_CENTRE
    return (
        (x - WIDTH / 2) / (WIDTH / 2),
        (y - (PAD_HEIGHT + LEG_DOWN)) / (HEIGHT / 2),
        velocity.x * (WIDTH / 2) / FRAMES_PER_SECOND,
        velocity.y * (HEIGHT / 2) / FRAMES_PER_SECOND,
        hull.angle,
        20.0 * velocity.spin / FRAMES_PER_SECOND,
        *(leg.ground.astype(jnp.float32) for leg in world.legs),
    )


def potential(seen: Numbers) -> Array:
    """Return Gymnasium's shaping: near the pad, slow, upright and on its legs is good."""
    x, y, x_speed, y_speed, angle, _, left, right = seen
    return (
        -100 * jnp.sqrt(x * x + y * y)
        - 100 * jnp.sqrt(x_speed * x_speed + y_speed * y_speed)
        - 100 * jnp.abs(angle)
        + 10 * left
        + 10 * right
    )


def at_start(heights: Heights) -> World:
    """Return the world before the first step, in which the legs are not yet where they belong."""
    none = jnp.zeros_like(heights[0])
    whole = none.astype(jnp.int32)
    still = Velocity(none, none, none)
    touch = Touch(whole - 1, none > 0, whole, whole, ContactImpulses(none, none, none, none))
    left, right = (
        Leg(
            Pose(none + (WIDTH / 2 - sign * LEG_AWAY), none + HEIGHT, none + sign * LEG_ANGLE),
            still,
            JointImpulses(none, none, none, none),
            whole,
            (touch, touch),
            none > 0,
            none,
        )
        for sign in LEG_SIGNS
    )
    hull = Pose(none + WIDTH / 2, none + (HEIGHT + HULL_CENTRE), none)
    return World(hull, still, none, (left, right), heights)


def numbers_of(tree: Any) -> Numbers:
    """Return all numbers of a tree as float32."""
    return tuple(leaf.astype(jnp.float32) for leaf in jax.tree.leaves(tree))


def episode_of(state: Numbers) -> Episode:
    episode: Episode = _tree_of(state, _like())
    return episode


def _tree_of(numbers: Sequence[Array], like: Any) -> Any:
    """Return the tree that `numbers_of` made numbers of."""
    leaves, tree = jax.tree.flatten(like)
    typed = [
        number > 0 if leaf.dtype == bool else number.astype(leaf.dtype)
        for number, leaf in zip(numbers, leaves, strict=True)
    ]
    return jax.tree.unflatten(tree, typed)


@cache
def _like() -> Any:
    def make(none: Array) -> Episode:
        return Episode(at_start((none,) * CHUNKS), none, none, none, none, none > 0, none, none)

    return jax.eval_shape(make, np.float32(0))


def _stepped_world(options: Options, world: World, load: Load, over: Array) -> Outcome:
    """Step crafts near the ground with contacts, the others without."""
    # Nobody uses the results of an episode that is over, so they need not cost anything.
    near = is_near_ground(world) & ~over
    if not near.shape:
        return Outcome(
            *lax.cond(
                near,
                lambda: stepped(world, load, options.gravity),
                lambda: stepped_in_flight(world, load, options.gravity),
            )
        )
    # Crafts that touch the ground already come first: the others need fewer iterations.
    rank = jnp.where(near, jnp.where(world.touching, 0, 1), -1)
    flown = stepped_in_flight(world, load, options.gravity)
    like = _like()
    given, results = (like.world, Load(*[like.shaping] * 3)), Outcome(like.world, *[like.over] * 2)

    def step_again(rows: Array) -> Array:
        near, load = _tree_of(tuple(rows), given)
        return jnp.stack(numbers_of(stepped(near, load, options.gravity)))

    before, after = (jnp.stack(numbers_of(tree)) for tree in ((world, load), flown))
    rows = replaced(step_again, rank, before, after)
    return Outcome(*_tree_of(tuple(rows), results))


def _wind(options: Options, episode: Episode) -> tuple[Load, Array, Array]:
    """Return the wind's load and the next indices. On the ground there is no wind."""
    none = jnp.zeros_like(episode.wind_index)
    if not options.enable_wind:
        return Load(none, none, none), episode.wind_index, episode.torque_index
    left, right = episode.world.legs
    blows = ~(left.ground | right.ground)
    load = Load(
        jnp.where(blows, options.wind_power * wind(episode.wind_index), 0.0),
        none,
        jnp.where(blows, options.turbulence_power * wind(episode.torque_index), 0.0),
    )
    return load, episode.wind_index + blows, episode.torque_index + blows

"""The rules of LunarLander: start, step, observation, reward and termination.

A state is S numbers (float32), so that it can be saved like the state of any other twin. Whole
numbers in it are below 2^24 and therefore exact. Here lanes are the last axis of every array.
"""

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedhql.environments.lunar_lander import noise
from fedhql.environments.lunar_lander.blocks import packed, replaced, unpacked
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
    World,
    is_near_ground,
    stepped,
    stepped_in_flight,
)
from fedhql.environments.lunar_lander.terrain import (
    CHUNKS,
    HEIGHT_DRAWS,
    HIGHEST_DRAW,
    PAD_HEIGHT,
    terrain,
)
from fedhql.environments.lunar_lander.touch import Touch

START_DRAWS = HEIGHT_DRAWS + 2 + 2 + 2  # heights, force, seed, wind and turbulence
_HALF = 2**16  # a seed is two whole numbers below this


class Options(NamedTuple):
    """Gymnasium's options of the same names."""

    gravity: float
    enable_wind: bool
    wind_power: float
    turbulence_power: float


class Episode(NamedTuple):
    """The state of M episodes."""

    world: World
    shaping: Array  # (M,) the potential that rewards are differences of
    seed_high: Array  # (M,) of the engines' noise
    seed_low: Array
    step: Array  # (M,) steps since the start
    over: Array  # (M,) True after the episode has terminated
    wind_index: Array
    torque_index: Array


def started(options: Options, draws: Array) -> Array:
    """Return the states (S, M) that draws (START_DRAWS, M) lead to, as Gymnasium's `reset`."""
    heights = terrain(HIGHEST_DRAW * draws[:HEIGHT_DRAWS])
    force, seed, indices = jnp.split(draws[HEIGHT_DRAWS:], 3)
    force = MOST_START_FORCE * (2 * force - 1)
    seed = jnp.floor(seed * _HALF)
    indices = jnp.floor(indices * (2 * 9999)) - 9999
    none = jnp.zeros_like(seed[0])
    first = Episode(
        at_start(heights), none, seed[0], seed[1], none, none > 0, indices[0], indices[1]
    )
    load, wind_index, torque_index = _wind(options, first)
    load = load._replace(force_x=load.force_x + force[0], force_y=load.force_y + force[1])
    world = stepped_in_flight(first.world, load, options.gravity).world
    return packed(
        first._replace(
            world=world,
            shaping=potential(observed(world)),
            wind_index=wind_index,
            torque_index=torque_index,
        )
    )


def stepped_lanes(options: Options, states: Array, actions: Array) -> tuple[Array, Array, Array]:
    """Step M episodes: states (S, M) and actions (M,) to states, rewards and terminated."""
    episode = episode_of(states)
    world = episode.world
    draws = noise_of(episode)
    velocity = fired(world.hull, rotation(world.hull.angle), world.hull_velocity, actions, draws)
    load, wind_index, torque_index = _wind(options, episode)
    outcome = _stepped_world(options, world._replace(hull_velocity=velocity), load, episode.over)

    seen = observed(outcome.world)
    shaping = potential(seen)
    fuel = jnp.where(
        actions == MAIN, 0.3, jnp.where((actions == LEFT) | (actions == RIGHT), 0.03, 0.0)
    )
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
    return packed(after), reward, terminated


def noise_of(episode: Episode) -> tuple[Array, Array]:
    """Return the two draws of the engines' noise in this step."""
    high, low = episode.seed_high.astype(jnp.uint32), episode.seed_low.astype(jnp.uint32)
    seed = high * jnp.uint32(_HALF) + low
    return noise.uniform(seed, episode.step, 0), noise.uniform(seed, episode.step, 1)


def observed(world: World) -> Array:
    """Return the observations (8, M)."""
    hull, velocity, r = world.hull, world.hull_velocity, rotation(world.hull.angle)
    # Gymnasium's position is the origin of the hull, its velocity that of the centre of mass.
    x, y = hull.x + r.sin * HULL_CENTRE, hull.y - r.cos * HULL_CENTRE
    return jnp.stack(
        [
            (x - WIDTH / 2) / (WIDTH / 2),
            (y - (PAD_HEIGHT + LEG_DOWN)) / (HEIGHT / 2),
            velocity.x * (WIDTH / 2) / FRAMES_PER_SECOND,
            velocity.y * (HEIGHT / 2) / FRAMES_PER_SECOND,
            hull.angle,
            20.0 * velocity.spin / FRAMES_PER_SECOND,
            world.ground[0].astype(jnp.float32),
            world.ground[1].astype(jnp.float32),
        ]
    )


def potential(seen: Array) -> Array:
    """Return Gymnasium's shaping: near the pad, slow, upright and on its legs is good."""
    x, y, x_speed, y_speed, angle, _, left, right = seen
    return (
        -100 * jnp.sqrt(x * x + y * y)
        - 100 * jnp.sqrt(x_speed * x_speed + y_speed * y_speed)
        - 100 * jnp.abs(angle)
        + 10 * left
        + 10 * right
    )


def at_start(heights: Array) -> World:
    """Return the worlds before the first step, in which the legs are not yet where they belong."""
    M = heights.shape[-1]
    none, pair = jnp.zeros(M), jnp.zeros((2, M))
    signs = jnp.broadcast_to(jnp.array(LEG_SIGNS)[:, None], (2, M))
    four = jnp.zeros((2, 2, M))
    whole = jnp.zeros((2, 2, M), jnp.int32)
    return World(
        Pose(none + WIDTH / 2, none + (HEIGHT + HULL_CENTRE), none),
        Velocity(none, none, none),
        Pose(WIDTH / 2 - signs * LEG_AWAY, pair + HEIGHT, signs * LEG_ANGLE),
        Velocity(pair, pair, pair),
        JointImpulses(pair, pair, pair, pair),
        jnp.zeros((2, M), jnp.int32),
        Touch(whole - 1, whole > 0, whole, whole, ContactImpulses(four, four, four, four)),
        pair > 0,
        jnp.zeros((3, M)),
        heights,
    )


def episode_of(states: Array) -> Episode:
    """Return the episodes that are packed in states (S, M)."""
    episode: Episode = unpacked(states, _like())
    return episode


@cache
def _like() -> Any:
    def make() -> Episode:
        none = jnp.zeros(1)
        world = at_start(jnp.zeros((CHUNKS, 1)))
        return Episode(world, none, none, none, none, none > 0, none, none)

    return jax.eval_shape(make)


def _stepped_world(options: Options, world: World, load: Load, over: Array) -> Outcome:
    """Step all crafts as if in flight, then step those near the ground again, with contacts."""
    flown = stepped_in_flight(world, load, options.gravity)
    # Crafts that touch the ground already come first: the others need fewer iterations.
    touching = jnp.any(world.touch.touching, axis=(0, 1))
    rank = jnp.where(touching, 0, jnp.where(is_near_ground(world), 1, -1))
    rank = jnp.where(over, -1, rank)  # nobody uses the results, so they need not cost anything
    like = _like()
    one = (like.world, Load(like.shaping, like.shaping, like.shaping))

    def step_again(rows: Array) -> Array:
        near, load = unpacked(rows, one)
        return packed(stepped(near, load, options.gravity))

    rows = replaced(step_again, rank, packed((world, load)), packed(flown))
    outcome: Outcome = unpacked(rows, Outcome(like.world, like.over, like.over))
    return outcome


def _wind(options: Options, episode: Episode) -> tuple[Load, Array, Array]:
    """Return the wind's load and the next indices. On the ground there is no wind."""
    none = jnp.zeros_like(episode.wind_index)
    if not options.enable_wind:
        return Load(none, none, none), episode.wind_index, episode.torque_index
    blows = ~(episode.world.ground[0] | episode.world.ground[1])
    load = Load(
        jnp.where(blows, options.wind_power * wind(episode.wind_index), 0.0),
        none,
        jnp.where(blows, options.turbulence_power * wind(episode.torque_index), 0.0),
    )
    return load, episode.wind_index + blows, episode.torque_index + blows

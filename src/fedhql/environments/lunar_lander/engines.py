"""What acts on the hull before Box2D's step: engines, wind and turbulence."""

from math import pi
from typing import NamedTuple

import jax.numpy as jnp

from fedhql.environments.lunar_lander.craft import (
    HULL_CENTRE,
    HULL_PER_INERTIA,
    HULL_PER_MASS,
    MAIN_OUTLET_Y,
    MAIN_POWER,
    SCALE,
    SIDE_AWAY,
    SIDE_HEIGHT,
    SIDE_POWER,
    SIDE_TILT,
)
from fedhql.environments.lunar_lander.geometry import (
    Array,
    Pose,
    Rotation,
    Vector,
    Velocity,
    cross,
    turned,
)

LEFT, MAIN, RIGHT = 1, 2, 3  # the actions that fire an engine; 0 fires none


class Load(NamedTuple):
    """A force and a torque on the hull for one step."""

    force_x: Array
    force_y: Array
    torque: Array


def fired(
    pose: Pose, r: Rotation, velocity: Velocity, action: Array, noise: tuple[Array, Array]
) -> Velocity:
    """Return the hull's velocity after the engine's impulse. `noise` is two numbers in [-1, 1)."""
    main, side = action == MAIN, (action == LEFT) | (action == RIGHT)
    along, across = noise[0] / SCALE, noise[1] / SCALE
    direction = (action - MAIN).astype(jnp.float32)
    # The outlet relative to the hull's origin; an engine pushes away from it.
    down = jnp.where(main, MAIN_OUTLET_Y + 2 * along, along)
    left = jnp.where(main, across, 3 * across + direction * SIDE_AWAY)
    outlet = Vector(r.sin * down - r.cos * left, -r.cos * down - r.sin * left)
    power = MAIN_POWER * main.astype(jnp.float32) + SIDE_POWER * side.astype(jnp.float32)
    impulse = Vector(-outlet.x * power, -outlet.y * power)
    # Gymnasium moves the side engines by 17 pixels in x but by 14 in y, and the twin does, too.
    origin = turned(r, Vector(jnp.zeros_like(power), jnp.full_like(power, -HULL_CENTRE)))
    arm = Vector(
        origin.x + outlet.x - jnp.where(main, 0.0, r.sin * SIDE_TILT),
        origin.y + outlet.y + jnp.where(main, 0.0, r.cos * SIDE_HEIGHT),
    )
    return Velocity(
        velocity.x + HULL_PER_MASS * impulse.x,
        velocity.y + HULL_PER_MASS * impulse.y,
        velocity.spin + HULL_PER_INERTIA * cross(arm, impulse),
    )


def wind(index: Array) -> Array:
    """Return the strength in [-1, 1] of the wind or the turbulence at an integer index.

    Gymnasium's tanh(sin(2 k x) + sin(π k x)) with k = 0.01 never repeats.
    """
    x = index.astype(jnp.float32)
    return jnp.tanh(jnp.sin(0.02 * x) + jnp.sin(pi * 0.01 * x))

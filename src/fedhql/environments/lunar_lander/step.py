"""One step of Box2D's world for the craft (b2World::Step).

The order is Box2D's: contacts are found at the poses of the step before; velocities take gravity
and forces; joints and contacts change the velocities 180 times in turn; poses follow, and up to 60
corrections put joints and contacts right; legs that pass into the ground are stopped at the impact.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from fedhql.environments.lunar_lander import contact_solver
from fedhql.environments.lunar_lander.contact_solver import ContactImpulses
from fedhql.environments.lunar_lander.contacts import separation
from fedhql.environments.lunar_lander.craft import (
    GRAVITY,
    HULL_CORNERS,
    HULL_NORMALS,
    SECONDS,
    SECONDS_TO_SLEEP,
    SKIN,
    SLEEPY_SPEED,
    SLEEPY_SPIN,
)
from fedhql.environments.lunar_lander.engines import Load
from fedhql.environments.lunar_lander.geometry import (
    Array,
    Pose,
    Velocity,
    anywhere,
    for_both,
    fusion_barrier,
    rotation,
    where,
)
from fedhql.environments.lunar_lander.impact import TARGET, TOLERANCE, Flight, stopped_at_impacts
from fedhql.environments.lunar_lander.positions import corrected, integrated
from fedhql.environments.lunar_lander.terrain import Heights, edges_below, highest_between
from fedhql.environments.lunar_lander.touch import Manifolds, Touches, updated
from fedhql.environments.lunar_lander.velocities import (
    Contacts,
    Impulses,
    Moving,
    accelerated,
    iterated,
    solved_in_flight,
)
from fedhql.environments.lunar_lander.world import Leg, World

_REACH = 1.3  # no point of the craft is further from the hull's centre


class Outcome(NamedTuple):
    """The world after a step, and how the episode ends, if it does."""

    world: World
    crashed: Array  # the hull touches the ground
    asleep: Array  # the craft has come to rest


def is_near_ground(world: World) -> Array:
    """Return False only if nothing can touch the ground in this step."""
    hull, velocity = world.hull, world.hull_velocity
    margin = _REACH + 1.5 * SECONDS * (jnp.abs(velocity.x) + jnp.abs(velocity.y))
    ground = highest_between(hull.x - margin, hull.x + margin, world.heights)
    return (hull.y - ground < margin) | world.touching


def stepped_in_flight(world: World, load: Load, gravity: float = GRAVITY) -> Outcome:
    """Step a craft that cannot touch the ground."""
    moving, prepared = accelerated(world, load, gravity, None)
    moving = solved_in_flight(moving, prepared)
    hull, poses, moving = integrated(world, moving)
    hull, poses, settled = corrected(hull, poses, prepared, None)
    hull_rest, rests, asleep = _resting(world, moving, settled)
    legs = [
        leg._replace(
            pose=poses[number],
            velocity=moving.legs[number],
            joint=moving.joints[number],
            limit=prepared[number].limit,
            rest=rests[number],
        )
        for number, leg in enumerate(world.legs)
    ]
    after = World(hull, moving.hull, hull_rest, (legs[0], legs[1]), world.heights)
    return Outcome(after, asleep & ~asleep, asleep)  # a kernel cannot return a literal


def stepped(world: World, load: Load, gravity: float = GRAVITY) -> Outcome:
    """Step a craft that may touch the ground."""
    found = for_both(
        lambda leg: updated(leg.pose, world.heights, leg.touches, leg.ground), world.legs
    )
    manifolds, touches = (found[0][0], found[1][0]), (found[0][1], found[1][1])
    grounds = found[0][2], found[1][2]
    crashed = _hull_gap(world.hull, world.heights) <= SKIN
    contacts = for_both(
        lambda of_leg: for_both(lambda m: fusion_barrier(contact_solver.prepared(m)), of_leg),
        manifolds,
    )
    impulses = for_both(_kept, manifolds, touches, contacts)
    moving, prepared = accelerated(world, load, gravity, (contacts, impulses))
    touching = [touch[0].touching | touch[1].touching for touch in touches]
    is_touching = touching[0] | touching[1]
    in_contact = lax.cond(
        anywhere(is_touching), lambda m: iterated(m, prepared, contacts), lambda m: m, moving
    )
    moving = where(is_touching, in_contact, solved_in_flight(moving, prepared))
    hull, poses, moving = integrated(world, moving)
    hull, poses, settled = corrected(hull, poses, prepared, manifolds)
    hull_rest, rests, asleep = _resting(world, moving, settled)
    crashed = crashed | ((_hull_gap(hull, world.heights) <= TARGET - TOLERANCE) & ~asleep)

    def landed(
        leg: Leg,
        pose: Pose,
        velocity: Velocity,
        touches: Touches,
        impulses: Impulses,
        ground: Array,
    ) -> Flight:
        now = [
            touch._replace(impulses=impulse)
            for touch, impulse in zip(touches, impulses, strict=True)
        ]
        flight = Flight(leg.pose, pose, velocity, jnp.zeros_like(pose.x), (now[0], now[1]), ground)
        return stopped_at_impacts(flight, world.heights, ~asleep)

    flights = for_both(landed, world.legs, poses, moving.legs, touches, moving.contacts, grounds)
    legs = [
        Leg(
            flight.end,
            flight.velocity,
            moving.joints[number],
            prepared[number].limit,
            flight.touches,
            flight.ground,
            rests[number],
        )
        for number, flight in enumerate(flights)
    ]
    hull_velocity = where(asleep, Velocity(*[jnp.zeros_like(hull.x)] * 3), moving.hull)
    after = World(hull, hull_velocity, hull_rest, (legs[0], legs[1]), world.heights)
    return Outcome(after, crashed, asleep)


def _kept(manifolds: Manifolds, touches: Touches, contacts: Contacts) -> Impulses:
    """Return a leg's impulses, without those of points that Box2D drops.

    It drops the second of two points that depend on each other.
    """
    kept = []
    for manifold, touch, contact in zip(manifolds, touches, contacts, strict=True):
        dropped = (manifold.point_count == 2) & ~contact.both
        n1, t1, n2, t2 = touch.impulses
        n2, t2 = jnp.where(dropped, 0.0, n2), jnp.where(dropped, 0.0, t2)
        kept.append(ContactImpulses(n1, t1, n2, t2))
    return kept[0], kept[1]


def _resting(
    world: World, moving: Moving, settled: Array
) -> tuple[Array, tuple[Array, Array], Array]:
    """Return the seconds at rest of hull and legs, and whether the craft falls asleep."""

    def rest(velocity: Velocity, before: Array) -> Array:
        speed = velocity.x * velocity.x + velocity.y * velocity.y
        spins = velocity.spin * velocity.spin > SLEEPY_SPIN**2
        return jnp.where(spins | (speed > SLEEPY_SPEED**2), 0.0, before + np.float32(SECONDS))

    hull = rest(moving.hull, world.hull_rest)
    left, right = for_both(rest, moving.legs, tuple(leg.rest for leg in world.legs))
    least = jnp.minimum(hull, jnp.minimum(left, right))
    return hull, (left, right), (least >= SECONDS_TO_SLEEP) & settled


def _hull_gap(hull: Pose, heights: Heights) -> Array:
    """Return the distance of the hull from the ground."""
    r = fusion_barrier(rotation(hull.angle))
    left, right = for_both(
        lambda edge: separation(hull, r, HULL_CORNERS, HULL_NORMALS, edge),
        edges_below(hull.x, heights),
    )
    return jnp.minimum(left, right)

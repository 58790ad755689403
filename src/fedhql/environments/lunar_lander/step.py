"""One step of Box2D's world for the craft (b2World::Step).

The order is Box2D's: contacts are found at the poses of the step before; velocities take gravity
and forces; joints and contacts change the velocities 180 times in turn; poses follow, and up to 60
corrections put joints and contacts right; legs that pass into the ground are stopped at the impact.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import lax

from fedhql.environments.lunar_lander import contact_solver, joints
from fedhql.environments.lunar_lander.contact_solver import Contact, ContactImpulses
from fedhql.environments.lunar_lander.contacts import Manifold, separation
from fedhql.environments.lunar_lander.craft import (
    GRAVITY,
    HULL_CORNERS,
    HULL_NORMALS,
    HULL_PER_INERTIA,
    HULL_PER_MASS,
    LEG_SIGNS,
    LINEAR_SLOP,
    MOST_ROTATION,
    MOST_TRANSLATION,
    POSITION_ITERATIONS,
    SECONDS,
    SECONDS_TO_SLEEP,
    SKIN,
    SLEEPY_SPEED,
    SLEEPY_SPIN,
    VELOCITY_ITERATIONS,
)
from fedhql.environments.lunar_lander.engines import Load
from fedhql.environments.lunar_lander.geometry import (
    Array,
    Pose,
    Velocity,
    at,
    computed_here,
    entry,
    rotation,
    where,
    with_entry,
)
from fedhql.environments.lunar_lander.impact import TARGET, TOLERANCE, Flight, stopped_at_impacts
from fedhql.environments.lunar_lander.joints import Joint, JointImpulses
from fedhql.environments.lunar_lander.terrain import edges_below, highest_between
from fedhql.environments.lunar_lander.touch import Touch, updated

_CORRECTION_RATE = 0.2  # b2_baumgarte
_SIGNS = np.array(LEG_SIGNS, dtype=np.float32)[:, None]  # (leg, 1)
_REACH = 1.3  # no point of the craft is further from the hull's centre


Body = TypeVar("Body", Pose, Velocity)


class World(NamedTuple):
    """All that Box2D remembers of M crafts. Fields of legs are (2, M)."""

    hull: Pose
    hull_velocity: Velocity
    legs: Pose
    leg_velocities: Velocity
    joints: JointImpulses
    limits: Array  # (2, M) where the joints were in the last step: FREE, AT_LOWER or AT_UPPER
    touch: Touch
    ground: Array  # (2, M) Gymnasium's flags: the leg is on the ground
    rest: Array  # (3, M) seconds for which hull and legs have been at rest
    heights: Array  # (11, M) of the ground


class Outcome(NamedTuple):
    """The world after a step, and how the episode ends, if it does."""

    world: World
    crashed: Array  # (M,) the hull touches the ground
    asleep: Array  # (M,) the craft has come to rest


class _Moving(NamedTuple):
    """What the velocity iterations change."""

    hull: Velocity
    legs: Velocity
    joints: JointImpulses
    contacts: ContactImpulses  # fields (edge, leg, M)


def is_near_ground(world: World) -> Array:
    """Return False (M,) only where nothing can touch the ground in this step."""
    hull, velocity = world.hull, world.hull_velocity
    margin = _REACH + 1.5 * SECONDS * (jnp.abs(velocity.x) + jnp.abs(velocity.y))
    ground = highest_between(hull.x - margin, hull.x + margin, world.heights)
    return (hull.y - ground < margin) | jnp.any(world.touch.touching, axis=(0, 1))


def stepped_in_flight(world: World, load: Load, gravity: float = GRAVITY) -> Outcome:
    """Step crafts that cannot touch the ground."""
    moving, prepared = _accelerated(world, load, gravity)
    moving = _solved_in_flight(moving, prepared)
    hull, legs, moving = _integrated(world, moving)
    hull, legs, settled = _corrected(hull, legs, prepared, None)
    rest, asleep = _resting(world.rest, moving, settled)
    after = world._replace(
        hull=hull,
        hull_velocity=moving.hull,
        legs=legs,
        leg_velocities=moving.legs,
        joints=moving.joints,
        limits=prepared.limit,
        rest=rest,
    )
    return Outcome(after, jnp.zeros_like(asleep), asleep)


def stepped(world: World, load: Load, gravity: float = GRAVITY) -> Outcome:
    """Step crafts that may touch the ground."""
    manifold, touch, ground = updated(world.legs, world.heights, world.touch, world.ground)
    crashed = _hull_gap(world.hull, world.heights) <= SKIN
    contacts = computed_here(contact_solver.prepared(manifold))
    # Box2D drops the second of two points that depend on each other.
    dropped = (manifold.point_count == 2) & ~contacts.both
    n1, t1, n2, t2 = touch.impulses
    impulses = ContactImpulses(n1, t1, jnp.where(dropped, 0.0, n2), jnp.where(dropped, 0.0, t2))
    moving, prepared = _accelerated(world, load, gravity, contacts, impulses)
    touching = jnp.any(touch.touching, axis=(0, 1))
    iterated = lax.cond(
        jnp.any(touching), lambda m: _iterated(m, prepared, contacts), lambda m: m, moving
    )
    moving = where(touching, iterated, _solved_in_flight(moving, prepared))
    hull, legs, moving = _integrated(world, moving)
    hull, legs, settled = _corrected(hull, legs, prepared, manifold)
    rest, asleep = _resting(world.rest, moving, settled)

    hull_hits = _hull_gap(hull, world.heights) <= TARGET - TOLERANCE
    crashed = crashed | (hull_hits & ~asleep)
    touch = touch._replace(impulses=moving.contacts)
    flight = Flight(world.legs, legs, moving.legs, jnp.zeros_like(legs.x), touch, ground)
    flight = stopped_at_impacts(flight, world.heights, ~asleep)
    after = World(
        hull,
        where(asleep, Velocity(*[jnp.zeros_like(hull.x)] * 3), moving.hull),
        flight.end,
        flight.velocity,
        moving.joints,
        prepared.limit,
        flight.touch,
        flight.ground,
        rest,
        world.heights,
    )
    return Outcome(after, crashed, asleep)


def _accelerated(
    world: World,
    load: Load,
    gravity: float,
    contacts: Contact | None = None,
    impulses: ContactImpulses | None = None,
) -> tuple[_Moving, Joint]:
    """Apply gravity and forces, then the impulses of the previous step."""
    hull, legs = world.hull_velocity, world.leg_velocities
    hull = Velocity(
        hull.x + SECONDS * HULL_PER_MASS * load.force_x,
        hull.y + SECONDS * (gravity + HULL_PER_MASS * load.force_y),
        hull.spin + SECONDS * HULL_PER_INERTIA * load.torque,
    )
    legs = legs._replace(y=legs.y + SECONDS * gravity)
    if contacts is not None and impulses is not None:
        for edge in range(2):
            legs = contact_solver.warm_started(at(contacts, edge), at(impulses, edge), legs)
    hull_r, r = computed_here((rotation(world.hull.angle), rotation(world.legs.angle)))
    prepared = computed_here(
        joints.prepared(jnp.asarray(_SIGNS), world.hull, hull_r, world.legs, r)
    )
    remembered = joints.remembered(prepared, world.joints, world.limits)

    def start(_: Array, joint: Joint, impulses: JointImpulses, *bodies: Velocity) -> Any:
        return impulses, *joints.warm_started(joint, impulses, *bodies)

    remembered, hull, legs = _leg_by_leg(start, prepared, remembered, hull, legs)
    contacts_now = world.touch.impulses if impulses is None else impulses
    return _Moving(hull, legs, remembered, contacts_now), prepared


def _leg_by_leg(
    visit: Callable[..., Any], prepared: Any, carried: Any, hull: Body, legs: Body, times: int = 1
) -> Any:
    """Visit the right leg, then the left one, `times` times; Box2D takes the newest joint first.

    `visit` gets the sign, the entries of `prepared` and `carried` for this leg, the hull and the
    leg. It returns the last three anew.
    """

    def one(number: Array, carry: Any) -> Any:
        carried, hull, legs = carry
        leg = 1 - (number & 1)
        sign = (2 * leg - 1).astype(jnp.float32)
        after, hull, moved = visit(
            sign, entry(prepared, leg), entry(carried, leg), hull, entry(legs, leg)
        )
        return with_entry(carried, leg, after), hull, with_entry(legs, leg, moved)

    return lax.fori_loop(0, 2 * times, one, (carried, hull, legs))


def _solved_in_flight(moving: _Moving, prepared: Joint) -> _Moving:
    impulses, hull, legs = _leg_by_leg(
        joints.solved_in_flight,
        prepared,
        moving.joints,
        moving.hull,
        moving.legs,
        joints.VISITS_IN_FLIGHT,
    )
    return moving._replace(hull=hull, legs=legs, joints=impulses)


def _iterated(moving: _Moving, prepared: Joint, contacts: Contact) -> _Moving:
    """Do Box2D's velocity iterations. In contact they do not converge, so none can be left out."""

    def iteration(_: Array, moving: _Moving) -> _Moving:
        impulses, hull, legs = _leg_by_leg(
            joints.solved, prepared, moving.joints, moving.hull, moving.legs
        )
        on_ground, legs = contact_solver.solved_in_turn(contacts, moving.contacts, legs)
        return _Moving(hull, legs, impulses, on_ground)

    return lax.fori_loop(0, VELOCITY_ITERATIONS, iteration, moving)


def _integrated(world: World, moving: _Moving) -> tuple[Pose, Pose, _Moving]:
    """Return the poses after the step, before corrections."""
    hull_velocity, leg_velocities = _limited(moving.hull), _limited(moving.legs)

    def moved(pose: Pose, velocity: Velocity) -> Pose:
        return Pose(*(p + SECONDS * v for p, v in zip(pose, velocity, strict=True)))

    hull, legs = moved(world.hull, hull_velocity), moved(world.legs, leg_velocities)
    moving = moving._replace(hull=hull_velocity, legs=leg_velocities)
    return computed_here((hull, legs, moving))


def _limited(velocity: Velocity) -> Velocity:
    """Slow a body that would move too far in one step."""
    distance = SECONDS * jnp.sqrt(velocity.x**2 + velocity.y**2)
    slower = MOST_TRANSLATION / jnp.maximum(distance, MOST_TRANSLATION)
    turn = SECONDS * jnp.abs(velocity.spin)
    return Velocity(
        velocity.x * slower,
        velocity.y * slower,
        velocity.spin * (MOST_ROTATION / jnp.maximum(turn, MOST_ROTATION)),
    )


def _corrected(
    hull: Pose, legs: Pose, prepared: Joint, manifold: Manifold | None
) -> tuple[Pose, Pose, Array]:
    """Correct the poses until every lane is fine; also return which lanes are."""
    Carry = tuple[Array, Pose, Pose, Array]
    points = None if manifold is None else contact_solver.depths(manifold)

    def join(sign: Array, limit: Array, _: Array, hull: Pose, leg: Pose) -> Any:
        hull, leg, fine = joints.corrected(sign, limit, hull, leg)
        return fine, hull, leg

    def correct(carry: Carry) -> Carry:
        iteration, hull, legs, settled = carry
        after = legs
        fine = jnp.ones_like(settled)
        if points is not None:
            after, least = contact_solver.pushed_out(points, legs, _CORRECTION_RATE)
            fine = jnp.all(least >= -3 * LINEAR_SLOP, axis=0)
        joined, moved, after = _leg_by_leg(join, prepared.limit, legs.x > 0, hull, after)
        return (
            iteration + 1,
            where(settled, hull, moved),
            where(settled, legs, after),
            settled | (fine & jnp.all(joined, axis=0)),
        )

    def correcting(carry: Carry) -> Array:
        return (carry[0] < POSITION_ITERATIONS) & ~jnp.all(carry[3])

    unsettled = jnp.zeros(hull.x.shape, bool)
    begun = (jnp.zeros((), jnp.int32), hull, legs, unsettled)
    _, hull, legs, settled = lax.while_loop(correcting, correct, begun)
    return hull, legs, settled


def _resting(rest: Array, moving: _Moving, settled: Array) -> tuple[Array, Array]:
    """Return the seconds at rest of hull and legs, and whether the craft falls asleep."""
    speeds = jnp.stack(
        [moving.hull.x**2 + moving.hull.y**2, *(moving.legs.x**2 + moving.legs.y**2)]
    )
    spins = jnp.stack([moving.hull.spin**2, *moving.legs.spin**2])
    moves = (spins > SLEEPY_SPIN**2) | (speeds > SLEEPY_SPEED**2)
    rest = jnp.where(moves, 0.0, rest + jnp.float32(SECONDS))
    return rest, (jnp.min(rest, axis=0) >= SECONDS_TO_SLEEP) & settled


def _hull_gap(hull: Pose, heights: Array) -> Array:
    """Return the distance (M,) of the hull from the ground."""
    edges = edges_below(hull.x, heights)
    gaps = separation(hull, computed_here(rotation(hull.angle)), HULL_CORNERS, HULL_NORMALS, edges)
    return jnp.min(gaps, axis=0)

"""One step of Box2D's world for the craft (b2World::Step).

The order is Box2D's: contacts are found at the poses of the step before; velocities take gravity
and forces; joints and contacts change the velocities 180 times in turn; poses follow, and up to 60
corrections put joints and contacts right; legs that pass into the ground are stopped at the impact.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from fedhql.environments.lunar_lander import contact_solver, joints
from fedhql.environments.lunar_lander.contact_solver import Contact, ContactImpulses
from fedhql.environments.lunar_lander.contacts import separation
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
    anywhere,
    computed_here,
    everywhere,
    for_both,
    rotation,
    where,
)
from fedhql.environments.lunar_lander.impact import TARGET, TOLERANCE, Flight, stopped_at_impacts
from fedhql.environments.lunar_lander.joints import Joint, JointImpulses
from fedhql.environments.lunar_lander.terrain import Heights, edges_below, highest_between
from fedhql.environments.lunar_lander.touch import Manifolds, Touches, updated

_CORRECTION_RATE = 0.2  # b2_baumgarte
_REACH = 1.3  # no point of the craft is further from the hull's centre
_SIGNS = tuple(np.float32(sign) for sign in LEG_SIGNS)
_LEG_ORDER = (1, 0)  # Box2D takes the newest joint first

Contacts = tuple[Contact, Contact]  # of one leg with both edges
Impulses = tuple[ContactImpulses, ContactImpulses]


class Leg(NamedTuple):
    """A leg, its joint and its contacts."""

    pose: Pose
    velocity: Velocity
    joint: JointImpulses
    limit: Array  # where the joint was in the last step: FREE, AT_LOWER or AT_UPPER
    touches: Touches
    ground: Array  # Gymnasium's flag: the leg is on the ground
    rest: Array  # seconds for which it has been at rest

    @property
    def touching(self) -> Array:
        return self.touches[0].touching | self.touches[1].touching


class World(NamedTuple):
    """All that Box2D remembers of a craft."""

    hull: Pose
    hull_velocity: Velocity
    hull_rest: Array
    legs: tuple[Leg, Leg]  # left and right
    heights: Heights

    @property
    def touching(self) -> Array:
        return self.legs[0].touching | self.legs[1].touching


class Outcome(NamedTuple):
    """The world after a step, and how the episode ends, if it does."""

    world: World
    crashed: Array  # the hull touches the ground
    asleep: Array  # the craft has come to rest


class _Moving(NamedTuple):
    """What the velocity iterations change; pairs are for the left and the right leg."""

    hull: Velocity
    legs: tuple[Velocity, Velocity]
    joints: tuple[JointImpulses, JointImpulses]
    contacts: tuple[Impulses, Impulses]


def is_near_ground(world: World) -> Array:
    """Return False only if nothing can touch the ground in this step."""
    hull, velocity = world.hull, world.hull_velocity
    margin = _REACH + 1.5 * SECONDS * (jnp.abs(velocity.x) + jnp.abs(velocity.y))
    ground = highest_between(hull.x - margin, hull.x + margin, world.heights)
    return (hull.y - ground < margin) | world.touching


def stepped_in_flight(world: World, load: Load, gravity: float = GRAVITY) -> Outcome:
    """Step a craft that cannot touch the ground."""
    moving, prepared = _accelerated(world, load, gravity, None)
    moving = _solved_in_flight(moving, prepared)
    hull, poses, moving = _integrated(world, moving)
    hull, poses, settled = _corrected(hull, poses, prepared, None)
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
        lambda of_leg: for_both(lambda m: computed_here(contact_solver.prepared(m)), of_leg),
        manifolds,
    )
    impulses = for_both(_kept, manifolds, touches, contacts)
    moving, prepared = _accelerated(world, load, gravity, (contacts, impulses))
    touching = [touch[0].touching | touch[1].touching for touch in touches]
    is_touching = touching[0] | touching[1]
    iterated = lax.cond(
        anywhere(is_touching), lambda m: _iterated(m, prepared, contacts), lambda m: m, moving
    )
    moving = where(is_touching, iterated, _solved_in_flight(moving, prepared))
    hull, poses, moving = _integrated(world, moving)
    hull, poses, settled = _corrected(hull, poses, prepared, manifolds)
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


def _accelerated(
    world: World,
    load: Load,
    gravity: float,
    on_ground: tuple[tuple[Contacts, Contacts], tuple[Impulses, Impulses]] | None,
) -> tuple[_Moving, tuple[Joint, Joint]]:
    """Apply gravity and forces, then the impulses of the previous step."""
    hull = world.hull_velocity
    hull = Velocity(
        hull.x + SECONDS * HULL_PER_MASS * load.force_x,
        hull.y + SECONDS * (gravity + HULL_PER_MASS * load.force_y),
        hull.spin + SECONDS * HULL_PER_INERTIA * load.torque,
    )
    legs = [leg.velocity._replace(y=leg.velocity.y + SECONDS * gravity) for leg in world.legs]
    if on_ground is None:
        impulses = for_both(lambda leg: tuple(touch.impulses for touch in leg.touches), world.legs)
    else:
        contacts, impulses = on_ground
        for number, velocity in enumerate(legs):
            for contact, impulse in zip(contacts[number], impulses[number], strict=True):
                velocity = contact_solver.warm_started(contact, impulse, velocity)
            legs[number] = velocity
    hull_r = computed_here(rotation(world.hull.angle))

    def joint_of(sign: Array, leg: Leg) -> Joint:
        r = computed_here(rotation(leg.pose.angle))
        return computed_here(joints.prepared(sign, world.hull, hull_r, leg.pose, r))

    signs = tuple(sign * jnp.ones_like(world.hull.x) for sign in _SIGNS)
    prepared = for_both(joint_of, signs, world.legs)
    remembered = for_both(
        lambda joint, leg: joints.remembered(joint, leg.joint, leg.limit), prepared, world.legs
    )

    def start(_: Array, joint: Joint, impulses: JointImpulses, *bodies: Velocity) -> Any:
        return impulses, *joints.warm_started(joint, impulses, *bodies)

    remembered, hull, moved = _leg_by_leg(start, prepared, remembered, hull, tuple(legs))
    return _Moving(hull, moved, remembered, impulses), prepared


def _leg_by_leg(
    visit: Callable[..., Any], prepared: Any, carried: Any, hull: Any, legs: Any
) -> Any:
    """Visit the right leg, then the left one.

    `visit` gets the sign, the entries of `prepared` and `carried` for this leg, the hull and the
    leg. It returns the last three anew.
    """
    carried, legs = list(carried), list(legs)
    for leg in _LEG_ORDER:
        carried[leg], hull, legs[leg] = computed_here(
            visit(_SIGNS[leg], prepared[leg], carried[leg], hull, legs[leg])
        )
    return tuple(carried), hull, tuple(legs)


def _solved_in_flight(moving: _Moving, prepared: tuple[Joint, Joint]) -> _Moving:
    def visit(_: Array, carry: Any) -> Any:
        return _leg_by_leg(joints.solved_in_flight, prepared, *carry)

    begun = moving.joints, moving.hull, moving.legs
    impulses, hull, legs = lax.fori_loop(0, joints.VISITS_IN_FLIGHT, visit, begun)
    return moving._replace(hull=hull, legs=legs, joints=impulses)


def _iterated(
    moving: _Moving, prepared: tuple[Joint, Joint], contacts: tuple[Contacts, Contacts]
) -> _Moving:
    """Do Box2D's velocity iterations. In contact they do not converge, so none can be left out."""

    def iteration(_: Array, moving: _Moving) -> _Moving:
        impulses, hull, legs = _leg_by_leg(
            joints.solved, prepared, moving.joints, moving.hull, moving.legs
        )
        left, right = for_both(contact_solver.solved_in_turn, contacts, moving.contacts, legs)
        return _Moving(hull, (left[1], right[1]), impulses, (left[0], right[0]))

    return lax.fori_loop(0, VELOCITY_ITERATIONS, iteration, moving)


def _integrated(world: World, moving: _Moving) -> tuple[Pose, tuple[Pose, Pose], _Moving]:
    """Return the poses after the step, before corrections."""
    hull_velocity = _limited(moving.hull)
    left, right = for_both(_limited, moving.legs)

    def moved(pose: Pose, velocity: Velocity) -> Pose:
        return Pose(*(p + SECONDS * v for p, v in zip(pose, velocity, strict=True)))

    poses = moved(world.legs[0].pose, left), moved(world.legs[1].pose, right)
    moving = moving._replace(hull=hull_velocity, legs=(left, right))
    return computed_here((moved(world.hull, hull_velocity), poses, moving))


def _limited(velocity: Velocity) -> Velocity:
    """Slow a body that would move too far in one step."""
    distance = SECONDS * jnp.sqrt(velocity.x * velocity.x + velocity.y * velocity.y)
    slower = MOST_TRANSLATION / jnp.maximum(distance, MOST_TRANSLATION)
    turn = SECONDS * jnp.abs(velocity.spin)
    return Velocity(
        velocity.x * slower,
        velocity.y * slower,
        velocity.spin * (MOST_ROTATION / jnp.maximum(turn, MOST_ROTATION)),
    )


def _corrected(
    hull: Pose,
    poses: tuple[Pose, Pose],
    prepared: tuple[Joint, Joint],
    manifolds: tuple[Manifolds, Manifolds] | None,
) -> tuple[Pose, tuple[Pose, Pose], Array]:
    """Correct the poses until all is fine; also return whether it is."""
    Carry = tuple[Array, Pose, tuple[Pose, Pose], Array]
    limits = tuple(joint.limit for joint in prepared)

    def join(sign: Array, limit: Array, _: Array, hull: Pose, leg: Pose) -> Any:
        hull, leg, fine = joints.corrected(sign, limit, hull, leg)
        return fine, hull, leg

    def correct(carry: Carry) -> Carry:
        iteration, hull, poses, settled = carry
        after, fine = poses, jnp.ones_like(settled)
        if manifolds is not None:
            pushed = for_both(
                lambda m, pose: contact_solver.pushed_out(m, pose, _CORRECTION_RATE),
                manifolds,
                poses,
            )
            after = pushed[0][0], pushed[1][0]
            fine = jnp.minimum(pushed[0][1], pushed[1][1]) >= -3 * LINEAR_SLOP
        joined, moved, after = _leg_by_leg(join, limits, (fine, fine), hull, after)
        return (
            iteration + 1,
            where(settled, hull, moved),
            where(settled, poses, after),
            settled | (fine & joined[0] & joined[1]),
        )

    def correcting(carry: Carry) -> Array:
        return (carry[0] < POSITION_ITERATIONS) & ~everywhere(carry[3])

    begun = (jnp.zeros((), jnp.int32), hull, poses, jnp.zeros_like(hull.x, dtype=bool))
    _, hull, poses, settled = lax.while_loop(correcting, correct, begun)
    return hull, poses, settled


def _resting(
    world: World, moving: _Moving, settled: Array
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
    r = computed_here(rotation(hull.angle))
    left, right = for_both(
        lambda edge: separation(hull, r, HULL_CORNERS, HULL_NORMALS, edge),
        edges_below(hull.x, heights),
    )
    return jnp.minimum(left, right)

"""Velocities in a step: forces, the impulses of the last step, and Box2D's velocity iterations."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from fedhql.environments.lunar_lander import contact_solver, joints
from fedhql.environments.lunar_lander.contact_solver import Contact, ContactImpulses
from fedhql.environments.lunar_lander.craft import (
    HULL_PER_INERTIA,
    HULL_PER_MASS,
    SECONDS,
    VELOCITY_ITERATIONS,
)
from fedhql.environments.lunar_lander.engines import Load
from fedhql.environments.lunar_lander.geometry import (
    Array,
    Velocity,
    for_both,
    fusion_barrier,
    rotation,
)
from fedhql.environments.lunar_lander.joints import Joint, JointImpulses
from fedhql.environments.lunar_lander.world import SIGNS, Leg, World, leg_by_leg

Contacts = tuple[Contact, Contact]  # of one leg with both edges
Impulses = tuple[ContactImpulses, ContactImpulses]


class Moving(NamedTuple):
    """What the velocity iterations change; pairs are for the left and the right leg."""

    hull: Velocity
    legs: tuple[Velocity, Velocity]
    joints: tuple[JointImpulses, JointImpulses]
    contacts: tuple[Impulses, Impulses]


def accelerated(
    world: World,
    load: Load,
    gravity: float,
    on_ground: tuple[tuple[Contacts, Contacts], tuple[Impulses, Impulses]] | None,
) -> tuple[Moving, tuple[Joint, Joint]]:
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
    hull_r = fusion_barrier(rotation(world.hull.angle))

    def joint_of(sign: Array, leg: Leg) -> Joint:
        r = fusion_barrier(rotation(leg.pose.angle))
        return fusion_barrier(joints.prepared(sign, world.hull, hull_r, leg.pose, r))

    signs = tuple(sign * jnp.ones_like(world.hull.x) for sign in SIGNS)
    prepared = for_both(joint_of, signs, world.legs)
    remembered = for_both(
        lambda joint, leg: joints.remembered(joint, leg.joint, leg.limit), prepared, world.legs
    )

    def start(_: Array, joint: Joint, impulses: JointImpulses, *bodies: Velocity) -> Any:
        return impulses, *joints.warm_started(joint, impulses, *bodies)

    remembered, hull, moved = leg_by_leg(start, prepared, remembered, hull, tuple(legs))
    return Moving(hull, moved, remembered, impulses), prepared


def solved_in_flight(moving: Moving, prepared: tuple[Joint, Joint]) -> Moving:
    def visit(_: Array, carry: Any) -> Any:
        return leg_by_leg(joints.solved_in_flight, prepared, *carry)

    begun = moving.joints, moving.hull, moving.legs
    impulses, hull, legs = lax.fori_loop(0, joints.VISITS_IN_FLIGHT, visit, begun)
    return moving._replace(hull=hull, legs=legs, joints=impulses)


def iterated(
    moving: Moving, prepared: tuple[Joint, Joint], contacts: tuple[Contacts, Contacts]
) -> Moving:
    """Do Box2D's velocity iterations. In contact they do not converge, so none can be left out."""

    def iteration(_: Array, moving: Moving) -> Moving:
        impulses, hull, legs = leg_by_leg(
            joints.solved, prepared, moving.joints, moving.hull, moving.legs
        )
        left, right = for_both(contact_solver.solved_in_turn, contacts, moving.contacts, legs)
        return Moving(hull, (left[1], right[1]), impulses, (left[0], right[0]))

    return lax.fori_loop(0, VELOCITY_ITERATIONS, iteration, moving)

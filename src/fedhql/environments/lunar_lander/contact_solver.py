"""Impulses and corrections of a leg's contact with one edge (Box2D's b2ContactSolver).

The ground does not move, so a contact changes the velocity and the pose of its leg only.
"""

from typing import NamedTuple

import jax.numpy as jnp

from fedhql.environments.lunar_lander.contacts import Manifold
from fedhql.environments.lunar_lander.craft import (
    FRICTION,
    LEG_PER_INERTIA,
    LEG_PER_MASS,
    LINEAR_SLOP,
    MOST_LINEAR_CORRECTION,
    SKIN,
)
from fedhql.environments.lunar_lander.geometry import (
    Array,
    Pose,
    Vector,
    Velocity,
    cross,
    dot,
    fusion_barrier,
    less,
    rotation,
    turned,
    where,
)

_MOST_CONDITION = 1000.0  # two points that depend on each other more than this count as one


class ContactImpulses(NamedTuple):
    """The impulses of the two points, along the normal and along the ground."""

    normal1: Array
    tangent1: Array
    normal2: Array
    tangent2: Array


class Contact(NamedTuple):
    """What stays the same during the velocity iterations."""

    normal: Vector
    lever1: Array  # arm x normal of the first point
    lever2: Array
    slide1: Array  # arm x tangent
    slide2: Array
    mass1: Array  # effective masses; 0 for a point that is not there
    mass2: Array
    tangent_mass1: Array
    tangent_mass2: Array
    both: Array  # True if two points are solved together
    k11: Array
    k12: Array
    k22: Array
    inverse11: Array
    inverse12: Array
    inverse22: Array


def prepared(manifold: Manifold) -> Contact:
    """Return the effective masses of a contact."""
    normal = manifold.normal
    tangent = Vector(normal.y, -normal.x)
    lever1, lever2 = (cross(arm, normal) for arm in manifold.arms)
    slide1, slide2 = (cross(arm, tangent) for arm in manifold.arms)
    k11 = LEG_PER_MASS + LEG_PER_INERTIA * lever1 * lever1
    k22 = LEG_PER_MASS + LEG_PER_INERTIA * lever2 * lever2
    k12 = LEG_PER_MASS + LEG_PER_INERTIA * lever1 * lever2
    determinant = k11 * k22 - k12 * k12
    both = (manifold.point_count == 2) & (k11 * k11 < _MOST_CONDITION * determinant)
    per = 1 / jnp.where(both, determinant, 1.0)
    one, two = manifold.point_count > 0, manifold.point_count > 1
    return Contact(
        normal,
        lever1,
        lever2,
        slide1,
        slide2,
        jnp.where(one, 1 / k11, 0.0),
        jnp.where(two, 1 / k22, 0.0),
        jnp.where(one, 1 / (LEG_PER_MASS + LEG_PER_INERTIA * slide1 * slide1), 0.0),
        jnp.where(both, 1 / (LEG_PER_MASS + LEG_PER_INERTIA * slide2 * slide2), 0.0),
        both,
        k11,
        k12,
        k22,
        k22 * per,
        -k12 * per,
        k11 * per,
    )


def warm_started(contact: Contact, impulses: ContactImpulses, velocity: Velocity) -> Velocity:
    """Apply the impulses of the previous step."""
    normal, n1, t1, n2, t2 = contact.normal, *impulses
    along, across = n1 + n2, t1 + t2
    turn = contact.lever1 * n1 + contact.lever2 * n2 + contact.slide1 * t1 + contact.slide2 * t2
    return Velocity(
        velocity.x + LEG_PER_MASS * (along * normal.x + across * normal.y),
        velocity.y + LEG_PER_MASS * (along * normal.y - across * normal.x),
        velocity.spin + LEG_PER_INERTIA * turn,
    )


def solved(
    contact: Contact, impulses: ContactImpulses, velocity: Velocity
) -> tuple[ContactImpulses, Velocity]:
    """Do one velocity iteration: friction first, then both normal impulses together."""
    n1, t1, n2, t2 = impulses
    normal, spin = contact.normal, velocity.spin
    rising = velocity.x * normal.x + velocity.y * normal.y
    sliding = velocity.x * normal.y - velocity.y * normal.x

    limit = FRICTION * n1
    after = t1 - contact.tangent_mass1 * (sliding + spin * contact.slide1)
    change, t1 = _change(after, t1, limit)
    sliding, spin = (
        sliding + LEG_PER_MASS * change,
        spin + LEG_PER_INERTIA * contact.slide1 * change,
    )
    limit = FRICTION * n2
    after = t2 - contact.tangent_mass2 * (sliding + spin * contact.slide2)
    change, t2 = _change(after, t2, limit)
    sliding, spin = (
        sliding + LEG_PER_MASS * change,
        spin + LEG_PER_INERTIA * contact.slide2 * change,
    )

    speed1, speed2 = rising + spin * contact.lever1, rising + spin * contact.lever2
    after1, after2 = _block_solution(contact, n1, n2, speed1, speed2)
    alone = jnp.maximum(n1 - contact.mass1 * speed1, 0.0)
    after1, after2 = jnp.where(contact.both, after1, alone), jnp.where(contact.both, after2, n2)
    change1, change2 = after1 - n1, after2 - n2
    rising = rising + LEG_PER_MASS * (change1 + change2)
    spin = spin + LEG_PER_INERTIA * (contact.lever1 * change1 + contact.lever2 * change2)
    return ContactImpulses(after1, t1, after2, t2), Velocity(
        rising * normal.x + sliding * normal.y, rising * normal.y - sliding * normal.x, spin
    )


def solved_in_turn(
    contacts: tuple[Contact, Contact],
    impulses: tuple[ContactImpulses, ContactImpulses],
    velocity: Velocity,
) -> tuple[tuple[ContactImpulses, ContactImpulses], Velocity]:
    """Do one velocity iteration of a leg's contacts with both edges."""
    first, velocity = fusion_barrier(solved(contacts[0], impulses[0], velocity))
    second, velocity = fusion_barrier(solved(contacts[1], impulses[1], velocity))
    return (first, second), velocity


def pushed_out(manifolds: tuple[Manifold, Manifold], pose: Pose, rate: float) -> tuple[Pose, Array]:
    """Push a leg out of the ground, point by point; also return the least separation before."""
    least = jnp.zeros_like(pose.x)
    for manifold in manifolds:
        for number, point in enumerate(manifold.local_points):
            is_there = manifold.point_count > number
            pose, gap = fusion_barrier(_pushed_out(manifold, point, is_there, pose, rate))
            least = jnp.minimum(least, gap)
    return pose, least


def _pushed_out(
    of: Manifold, point: Vector, is_there: Array, pose: Pose, rate: float
) -> tuple[Pose, Array]:
    r = rotation(pose.angle)
    normal = where(of.on_leg, turned(r, of.local_normal), of.local_normal)
    # Positions relative to the leg's centre.
    arm = where(of.on_leg, less(point, pose), turned(r, point))
    reference = where(of.on_leg, turned(r, of.local_point), less(of.local_point, pose))
    gap = dot(less(arm, reference), normal) - SKIN
    normal = where(of.on_leg, Vector(-normal.x, -normal.y), normal)
    wanted = jnp.clip(rate * (gap + LINEAR_SLOP), -MOST_LINEAR_CORRECTION, 0.0)
    lever = cross(arm, normal)
    push = -wanted / (LEG_PER_MASS + LEG_PER_INERTIA * lever * lever)
    push = jnp.where(is_there, push, 0.0)
    moved = Pose(
        pose.x + LEG_PER_MASS * push * normal.x,
        pose.y + LEG_PER_MASS * push * normal.y,
        pose.angle + LEG_PER_INERTIA * lever * push,
    )
    return moved, jnp.where(is_there, gap, 0.0)


def _change(after: Array, before: Array, limit: Array) -> tuple[Array, Array]:
    after = jnp.clip(after, -limit, limit)
    return after - before, after


def _block_solution(
    contact: Contact, n1: Array, n2: Array, speed1: Array, speed2: Array
) -> tuple[Array, Array]:
    """Solve the linear complementarity problem of two points by trying its four cases in turn."""
    b1 = speed1 - contact.k11 * n1 - contact.k12 * n2
    b2 = speed2 - contact.k12 * n1 - contact.k22 * n2
    pushes1 = -(contact.inverse11 * b1 + contact.inverse12 * b2)
    pushes2 = -(contact.inverse12 * b1 + contact.inverse22 * b2)
    both = (pushes1 >= 0) & (pushes2 >= 0)
    only1 = -contact.mass1 * b1
    first = (only1 >= 0) & (contact.k12 * only1 + b2 >= 0)
    only2 = -contact.mass2 * b2
    second = (only2 >= 0) & (contact.k12 * only2 + b1 >= 0)
    neither = (b1 >= 0) & (b2 >= 0)
    after1 = jnp.where(both, pushes1, jnp.where(first, only1, jnp.where(second | neither, 0.0, n1)))
    after2 = jnp.where(
        both, pushes2, jnp.where(first, 0.0, jnp.where(second, only2, jnp.where(neither, 0.0, n2)))
    )
    return after1, after2

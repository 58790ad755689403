"""The revolute joint of a leg: point, motor and limits (Box2D's b2RevoluteJoint)."""

from typing import NamedTuple

import jax.numpy as jnp

from fedhql.environments.lunar_lander.craft import (
    ANGULAR_SLOP,
    HULL_CENTRE,
    HULL_PER_INERTIA,
    HULL_PER_MASS,
    JOINT_FREEDOM,
    JOINT_MIDDLE,
    LEG_AWAY,
    LEG_DOWN,
    LEG_PER_INERTIA,
    LEG_PER_MASS,
    LINEAR_SLOP,
    MOST_ANGULAR_CORRECTION,
    MOST_MOTOR_IMPULSE,
    MOTOR_MASS,
    MOTOR_SPEED,
    VELOCITY_ITERATIONS,
)
from fedhql.environments.lunar_lander.geometry import (
    Array,
    Pose,
    Rotation,
    Vector,
    Velocity,
    cross,
    fusion_barrier,
    rotation,
    turned,
)

FREE, AT_LOWER, AT_UPPER = 0, 1, 2
VISITS_IN_FLIGHT = 3


class JointImpulses(NamedTuple):
    """The impulses that a joint exerts on its leg."""

    x: Array
    y: Array
    limit: Array
    motor: Array


class Joint(NamedTuple):
    """What stays the same during the velocity iterations.

    Point and limit together have the symmetric 3 x 3 matrix K. `inverse` is the inverse of all of
    it; `point_inverse` is the inverse of its upper left 2 x 2 part.
    """

    limit: Array  # FREE, AT_LOWER or AT_UPPER
    hull_arm: Vector
    leg_arm: Vector
    k13: Array
    k23: Array
    point_inverse: tuple[Array, Array, Array]  # 11, 12, 22
    inverse: tuple[Array, Array, Array, Array, Array, Array]  # 11, 12, 13, 22, 23, 33
    # How much the point's impulse changes with the torque, and the moment of inertia that the
    # torque then feels.
    give: Vector
    inertia: Array


def prepared(sign: Array, hull: Pose, hull_r: Rotation, pose: Pose, r: Rotation) -> Joint:
    """Return the joint between hull and leg; `sign` is -1 for the left leg, 1 for the right."""
    hull_arm, leg_arm = _arms(sign, hull_r, r)
    k11, k12, k22 = _point_matrix(hull_arm, leg_arm)
    k13 = -hull_arm.y * HULL_PER_INERTIA - leg_arm.y * LEG_PER_INERTIA
    k23 = hull_arm.x * HULL_PER_INERTIA + leg_arm.x * LEG_PER_INERTIA
    k33 = HULL_PER_INERTIA + LEG_PER_INERTIA
    minor = k11 * k22 - k12 * k12
    point_inverse = (k22 / minor, -k12 / minor, k11 / minor)
    c11, c12, c13 = k22 * k33 - k23 * k23, k13 * k23 - k12 * k33, k12 * k23 - k13 * k22
    determinant = k11 * c11 + k12 * c12 + k13 * c13
    cofactors = (c11, c12, c13, k11 * k33 - k13 * k13, k12 * k13 - k11 * k23, minor)
    c = [each / determinant for each in cofactors]
    give = Vector(
        point_inverse[0] * k13 + point_inverse[1] * k23,
        point_inverse[1] * k13 + point_inverse[2] * k23,
    )
    angle = pose.angle - hull.angle
    lower, upper = _limits(sign)
    limit = AT_LOWER * (angle <= lower).astype(jnp.int32)
    limit = jnp.where(angle >= upper, AT_UPPER, limit)
    inertia = 1 / (k33 - k13 * give.x - k23 * give.y)
    return Joint(
        limit,
        hull_arm,
        leg_arm,
        k13,
        k23,
        point_inverse,
        (c[0], c[1], c[2], c[3], c[4], c[5]),
        give,
        inertia,
    )


def remembered(joint: Joint, impulses: JointImpulses, limit_before: Array) -> JointImpulses:
    """Forget the limit's impulse unless the joint is at the same limit as in the step before."""
    kept = (joint.limit == limit_before) & (joint.limit != FREE)
    return impulses._replace(limit=jnp.where(kept, impulses.limit, 0.0))


def pushed(
    joint: Joint, x: Array, y: Array, torque: Array, hull: Velocity, leg: Velocity
) -> tuple[Velocity, Velocity]:
    """Apply an impulse to the leg, and its opposite to the hull."""
    impulse = Vector(x, y)
    return Velocity(
        hull.x - HULL_PER_MASS * x,
        hull.y - HULL_PER_MASS * y,
        hull.spin - HULL_PER_INERTIA * (cross(joint.hull_arm, impulse) + torque),
    ), Velocity(
        leg.x + LEG_PER_MASS * x,
        leg.y + LEG_PER_MASS * y,
        leg.spin + LEG_PER_INERTIA * (cross(joint.leg_arm, impulse) + torque),
    )


def warm_started(
    joint: Joint, impulses: JointImpulses, hull: Velocity, leg: Velocity
) -> tuple[Velocity, Velocity]:
    """Apply the impulses of the previous step."""
    return pushed(joint, impulses.x, impulses.y, impulses.motor + impulses.limit, hull, leg)


def solved(
    sign: Array, joint: Joint, impulses: JointImpulses, hull: Velocity, leg: Velocity
) -> tuple[JointImpulses, Velocity, Velocity]:
    """Do one velocity iteration: the motor first, then point and limit together."""
    wanted = MOTOR_SPEED * sign
    motor = jnp.clip(
        impulses.motor - MOTOR_MASS * (leg.spin - hull.spin - wanted),
        -MOST_MOTOR_IMPULSE,
        MOST_MOTOR_IMPULSE,
    )
    change = motor - impulses.motor
    hull = hull._replace(spin=hull.spin - HULL_PER_INERTIA * change)
    leg = leg._replace(spin=leg.spin + LEG_PER_INERTIA * change)

    gap, turning = _drift(joint, hull, leg), leg.spin - hull.spin
    i11, i12, i13, i22, i23, i33 = joint.inverse
    x = -(i11 * gap.x + i12 * gap.y + i13 * turning)
    y = -(i12 * gap.x + i22 * gap.y + i23 * turning)
    torque = -(i13 * gap.x + i23 * gap.y + i33 * turning)
    held = impulses.limit + torque
    # A limit can only push back. If it would pull, it lets go, and the point is solved alone.
    loose = (
        (joint.limit == FREE)
        | ((joint.limit == AT_LOWER) & (held < 0))
        | ((joint.limit == AT_UPPER) & (held > 0))
    )
    p11, p12, p22 = joint.point_inverse
    open_x = impulses.limit * joint.k13 - gap.x
    open_y = impulses.limit * joint.k23 - gap.y
    x = jnp.where(loose, p11 * open_x + p12 * open_y, x)
    y = jnp.where(loose, p12 * open_x + p22 * open_y, y)
    torque = jnp.where(loose, -impulses.limit, torque)
    hull, leg = pushed(joint, x, y, torque, hull, leg)
    limit = jnp.where(loose, 0.0, held)
    return JointImpulses(impulses.x + x, impulses.y + y, limit, motor), hull, leg


def solved_in_flight(
    sign: Array, joint: Joint, impulses: JointImpulses, hull: Velocity, leg: Velocity
) -> tuple[JointImpulses, Velocity, Velocity]:
    """Solve point, motor and limit together, in closed form.

    Without contacts, Box2D's 180 iterations converge. Three visits of this function to each joint
    give the same velocities. At a limit, motor and limit press against each other, and each
    iteration of Box2D moves an equal part of the load from one to the other.
    """
    gap = _drift(joint, hull, leg)
    free_turning = leg.spin - hull.spin - joint.give.x * gap.x - joint.give.y * gap.y
    before = impulses.limit + impulses.motor
    wanted = MOTOR_SPEED * sign
    by_motor = jnp.clip(
        before + (wanted - free_turning) * joint.inertia, -MOST_MOTOR_IMPULSE, MOST_MOTOR_IMPULSE
    )
    holding = before - free_turning * joint.inertia  # the torque that stops the leg
    at_limit = ((joint.limit == AT_LOWER) & (holding > by_motor)) | (
        (joint.limit == AT_UPPER) & (holding < by_motor)
    )
    torque = jnp.where(at_limit, holding, by_motor)
    change = torque - before
    p11, p12, p22 = joint.point_inverse
    x = -(p11 * gap.x + p12 * gap.y) - joint.give.x * change
    y = -(p12 * gap.x + p22 * gap.y) - joint.give.y * change
    hull, leg = pushed(joint, x, y, change, hull, leg)
    iterations = VELOCITY_ITERATIONS / VISITS_IN_FLIGHT
    crept = jnp.clip(
        impulses.motor + wanted * iterations * MOTOR_MASS, -MOST_MOTOR_IMPULSE, MOST_MOTOR_IMPULSE
    )
    crept = jnp.where(
        joint.limit == AT_LOWER, jnp.minimum(crept, torque), jnp.maximum(crept, torque)
    )
    motor = jnp.where(at_limit, crept, by_motor)
    limit = jnp.where(at_limit, torque - crept, 0.0)
    return JointImpulses(impulses.x + x, impulses.y + y, limit, motor), hull, leg


def corrected(sign: Array, limit: Array, hull: Pose, pose: Pose) -> tuple[Pose, Pose, Array]:
    """Turn the leg back to its limit and pull it to the hull; also return whether both were so."""
    lower, upper = _limits(sign)
    angle = pose.angle - hull.angle
    below, above = angle - lower, angle - upper
    at_lower, at_upper = limit == AT_LOWER, limit == AT_UPPER
    angular_error = jnp.where(at_lower, -below, jnp.where(at_upper, above, 0.0))
    wanted = jnp.where(
        at_lower,
        jnp.clip(below + ANGULAR_SLOP, -MOST_ANGULAR_CORRECTION, 0.0),
        jnp.where(at_upper, jnp.clip(above - ANGULAR_SLOP, 0.0, MOST_ANGULAR_CORRECTION), 0.0),
    )
    torque = -MOTOR_MASS * wanted
    hull = hull._replace(angle=hull.angle - HULL_PER_INERTIA * torque)
    pose = pose._replace(angle=pose.angle + LEG_PER_INERTIA * torque)

    hull_arm, leg_arm = _arms(sign, *fusion_barrier((rotation(hull.angle), rotation(pose.angle))))
    x = pose.x + leg_arm.x - hull.x - hull_arm.x
    y = pose.y + leg_arm.y - hull.y - hull_arm.y
    fine = (x * x + y * y <= LINEAR_SLOP * LINEAR_SLOP) & (angular_error <= ANGULAR_SLOP)
    k11, k12, k22 = _point_matrix(hull_arm, leg_arm)
    per = -1 / (k11 * k22 - k12 * k12)
    impulse = Vector(per * (k22 * x - k12 * y), per * (k11 * y - k12 * x))
    return (
        Pose(
            hull.x - HULL_PER_MASS * impulse.x,
            hull.y - HULL_PER_MASS * impulse.y,
            hull.angle - HULL_PER_INERTIA * cross(hull_arm, impulse),
        ),
        Pose(
            pose.x + LEG_PER_MASS * impulse.x,
            pose.y + LEG_PER_MASS * impulse.y,
            pose.angle + LEG_PER_INERTIA * cross(leg_arm, impulse),
        ),
        fine,
    )


def _limits(sign: Array) -> tuple[Array, Array]:
    return JOINT_MIDDLE * sign - JOINT_FREEDOM, JOINT_MIDDLE * sign + JOINT_FREEDOM


def _arms(sign: Array, hull_r: Rotation, r: Rotation) -> tuple[Vector, Vector]:
    """Return the vectors from the centres of mass of hull and leg to the joint."""
    zero, one = jnp.zeros_like(r.cos), jnp.ones_like(r.cos)
    hull_arm = turned(hull_r, Vector(zero, -HULL_CENTRE * one))
    return hull_arm, turned(r, Vector(sign * LEG_AWAY * one, LEG_DOWN * one))


def _point_matrix(hull_arm: Vector, leg_arm: Vector) -> tuple[Array, Array, Array]:
    """Return the entries 11, 12 and 22 of the matrix from impulse to velocity at the joint."""
    masses = HULL_PER_MASS + LEG_PER_MASS
    k11 = masses + HULL_PER_INERTIA * hull_arm.y**2 + LEG_PER_INERTIA * leg_arm.y**2
    k12 = -HULL_PER_INERTIA * hull_arm.x * hull_arm.y - LEG_PER_INERTIA * leg_arm.x * leg_arm.y
    k22 = masses + HULL_PER_INERTIA * hull_arm.x**2 + LEG_PER_INERTIA * leg_arm.x**2
    return k11, k12, k22


def _drift(joint: Joint, hull: Velocity, leg: Velocity) -> Vector:
    """Return how fast the leg's end of the joint leaves the hull's."""
    hull_arm, leg_arm = joint.hull_arm, joint.leg_arm
    return Vector(
        leg.x - leg.spin * leg_arm.y - hull.x + hull.spin * hull_arm.y,
        leg.y + leg.spin * leg_arm.x - hull.y - hull.spin * hull_arm.x,
    )

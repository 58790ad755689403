"""Poses after a step: moved by the velocities, then corrected until joints and contacts fit."""

from typing import Any

import jax.numpy as jnp
from jax import lax

from fedhql.environments.lunar_lander import contact_solver, joints
from fedhql.environments.lunar_lander.craft import (
    LINEAR_SLOP,
    MOST_ROTATION,
    MOST_TRANSLATION,
    POSITION_ITERATIONS,
    SECONDS,
)
from fedhql.environments.lunar_lander.geometry import (
    Array,
    Pose,
    Velocity,
    everywhere,
    for_both,
    fusion_barrier,
    where,
)
from fedhql.environments.lunar_lander.joints import Joint
from fedhql.environments.lunar_lander.touch import Manifolds
from fedhql.environments.lunar_lander.velocities import Moving
from fedhql.environments.lunar_lander.world import World, leg_by_leg

_CORRECTION_RATE = 0.2  # b2_baumgarte


def integrated(world: World, moving: Moving) -> tuple[Pose, tuple[Pose, Pose], Moving]:
    """Return the poses after the step, before corrections."""
    hull_velocity = _limited(moving.hull)
    left, right = for_both(_limited, moving.legs)

    def moved(pose: Pose, velocity: Velocity) -> Pose:
        return Pose(*(p + SECONDS * v for p, v in zip(pose, velocity, strict=True)))

    poses = moved(world.legs[0].pose, left), moved(world.legs[1].pose, right)
    moving = moving._replace(hull=hull_velocity, legs=(left, right))
    return fusion_barrier((moved(world.hull, hull_velocity), poses, moving))


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


def corrected(
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
        joined, moved, after = leg_by_leg(join, limits, (fine, fine), hull, after)
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

"""Time-of-impact steps: a leg that would pass into the ground stops there (b2World::SolveTOI).

Box2D moves the leg alone, without its joint, to the moment of the impact, solves its contacts, and
lets it move on for the rest of the step. The joint is apart for one step.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedhql.environments.lunar_lander import contact_solver
from fedhql.environments.lunar_lander.contact_solver import ContactImpulses
from fedhql.environments.lunar_lander.contacts import moved, separation
from fedhql.environments.lunar_lander.craft import (
    LEG_CORNERS,
    LEG_NORMALS,
    LINEAR_SLOP,
    SECONDS,
)
from fedhql.environments.lunar_lander.geometry import (
    Array,
    Pose,
    Velocity,
    computed_here,
    rotation,
    where,
)
from fedhql.environments.lunar_lander.terrain import edges_below
from fedhql.environments.lunar_lander.touch import Touch, updated

TARGET, TOLERANCE = LINEAR_SLOP, 0.25 * LINEAR_SLOP  # the distance at which shapes "impact"
_MOST_EVENTS = 8  # b2_maxSubSteps
_MOST_ROOT_STEPS = 20
_POSITION_ITERATIONS = 20
_VELOCITY_ITERATIONS = 30  # Box2D does 180; one leg and two edges settle much earlier
_CORRECTION_RATE = 0.75  # b2_toiBaugarte
_ENOUGH = -1.5 * LINEAR_SLOP


class Flight(NamedTuple):
    """The motion of the legs that is left of this step; fields (leg, M)."""

    start: Pose
    end: Pose
    velocity: Velocity
    elapsed: Array  # share of the step at `start`
    touch: Touch
    ground: Array


def stopped_at_impacts(flight: Flight, heights: Array, awake: Array) -> Flight:
    """Return the motion after all impacts of this step."""

    def more(carry: tuple[Array, Array, Flight]) -> Array:
        events, hit, _ = carry
        return hit & (events < _MOST_EVENTS)

    def event(carry: tuple[Array, Array, Flight]) -> tuple[Array, Array, Flight]:
        events, _, flight = carry
        moment = time_of_impact(flight, heights)
        hit = (moment < 1 - 1e-6) & awake
        after: Flight = lax.cond(
            jnp.any(hit), lambda f: _impact(f, heights, moment, hit), lambda f: f, flight
        )
        return events + 1, jnp.any(hit), after

    first = (jnp.zeros((), jnp.int32), jnp.ones((), bool), flight)
    return lax.while_loop(more, event, first)[2]


def time_of_impact(flight: Flight, heights: Array) -> Array:
    """Return the share (leg, M) of the remaining motion until a leg hits an edge; 2 if it does not.

    The distance between shapes is followed along their best separating axis.
    """
    edges = edges_below(flight.end.x, heights)

    def distance(moment: Array) -> Array:
        pose = _between(flight.start, flight.end, moment)
        return separation(
            pose, computed_here(rotation(pose.angle)), LEG_CORNERS, LEG_NORMALS, edges
        )

    zero = jnp.zeros_like(edges.x1)
    gap1, gap2 = computed_here((distance(zero), distance(zero + 1)))
    at_once = (gap1 > 0) & (gap1 < TARGET + TOLERANCE)
    later = (gap1 >= TARGET + TOLERANCE) & (gap2 <= TARGET - TOLERANCE)

    Search = tuple[Array, Array, Array, Array, Array, Array, Array]

    def search(carry: Search) -> Search:
        """Bisect and interpolate in turns, as Box2D does."""
        step, low, high, gap1, gap2, moment, found = carry
        slope = jnp.where(gap2 == gap1, 1.0, gap2 - gap1)
        interpolated = low + (TARGET - gap1) * (high - low) / slope
        tried = jnp.where(step % 2 == 1, interpolated, 0.5 * (low + high))
        gap = distance(tried)
        moment = jnp.where(found, moment, tried)
        found = found | (jnp.abs(gap - TARGET) < TOLERANCE)
        above = gap > TARGET
        low, high = jnp.where(above, tried, low), jnp.where(above, high, tried)
        gap1, gap2 = jnp.where(above, gap, gap1), jnp.where(above, gap2, gap)
        return step + 1, low, high, gap1, gap2, moment, found

    def searching(carry: Search) -> Array:
        return (carry[0] < _MOST_ROOT_STEPS) & ~jnp.all(carry[-1])

    begun = (jnp.zeros((), jnp.int32), zero, zero + 1, gap1, gap2, zero + 1, ~later)
    moment = lax.while_loop(searching, search, begun)[5]
    return jnp.min(jnp.where(at_once, 0.0, jnp.where(later, moment, 2.0)), axis=0)


def _impact(flight: Flight, heights: Array, moment: Array, hit: Array) -> Flight:
    """Stop the legs that hit at their moments and solve their contacts there."""
    moment = jnp.where(hit, moment, 0.0)
    pose = computed_here(_between(flight.start, flight.end, moment))
    manifold, touch, ground = updated(pose, heights, flight.touch, flight.ground)
    hit = hit & jnp.any(touch.touching, axis=0)

    points = contact_solver.depths(manifold)

    def correct(carry: tuple[Array, Pose, Array]) -> tuple[Array, Pose, Array]:
        iteration, pose, fine = carry
        corrected, least = contact_solver.pushed_out(points, pose, _CORRECTION_RATE)
        return iteration + 1, where(fine, pose, corrected), fine | (least >= _ENOUGH)

    def correcting(carry: tuple[Array, Pose, Array]) -> Array:
        return (carry[0] < _POSITION_ITERATIONS) & ~jnp.all(carry[2])

    pose = lax.while_loop(correcting, correct, (jnp.zeros((), jnp.int32), pose, ~hit))[1]
    contacts = computed_here(
        contact_solver.prepared(moved(manifold, pose, computed_here(rotation(pose.angle))))
    )

    def solve(
        _: Array, carry: tuple[ContactImpulses, Velocity]
    ) -> tuple[ContactImpulses, Velocity]:
        return contact_solver.solved_in_turn(contacts, *carry)

    # Box2D does not warm-start here, and it forgets the impulses.
    none = ContactImpulses(*[jnp.zeros((2, *moment.shape))] * 4)
    _, velocity = lax.fori_loop(0, _VELOCITY_ITERATIONS, solve, (none, flight.velocity))
    elapsed = flight.elapsed + (1 - flight.elapsed) * moment
    seconds = (1 - elapsed) * SECONDS
    end = jax.tree.map(lambda p, v: p + seconds * v, pose, Pose(*velocity))
    return where(hit, Flight(pose, end, velocity, elapsed, touch, ground), flight)


def _between(start: Pose, end: Pose, share: Array) -> Pose:
    return Pose(*(a + share * (b - a) for a, b in zip(start, end, strict=True)))

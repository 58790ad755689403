"""Time-of-impact steps: a leg that would pass into the ground stops there (b2World::SolveTOI).

Box2D moves the leg alone, without its joint, to the moment of the impact, solves its contacts, and
lets it move on for the rest of the step. The joint is apart for one step.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from fedhql.environments.lunar_lander.contact_solver import (
    ContactImpulses,
    prepared,
    pushed_out,
    solved_in_turn,
)
from fedhql.environments.lunar_lander.contacts import moved, separation
from fedhql.environments.lunar_lander.craft import LEG_CORNERS, LEG_NORMALS, LINEAR_SLOP, SECONDS
from fedhql.environments.lunar_lander.geometry import (
    Array,
    Pose,
    Velocity,
    anywhere,
    everywhere,
    for_both,
    fusion_barrier,
    rotation,
    where,
)
from fedhql.environments.lunar_lander.terrain import Edge, Heights, edges_below
from fedhql.environments.lunar_lander.touch import Touches, updated

TARGET, TOLERANCE = LINEAR_SLOP, 0.25 * LINEAR_SLOP  # the distance at which shapes "impact"
_MOST_EVENTS = 8  # b2_maxSubSteps
_MOST_ROOT_STEPS = 20
_POSITION_ITERATIONS = 20
_VELOCITY_ITERATIONS = 30  # Box2D does 180; one leg and two edges settle much earlier
_CORRECTION_RATE = 0.75  # b2_toiBaugarte
_ENOUGH = -1.5 * LINEAR_SLOP


class Flight(NamedTuple):
    """The motion of a leg that is left of this step."""

    start: Pose
    end: Pose
    velocity: Velocity
    elapsed: Array  # share of the step at `start`
    touches: Touches
    ground: Array


def stopped_at_impacts(flight: Flight, heights: Heights, awake: Array) -> Flight:
    """Return the motion after all impacts of this step."""

    def more(carry: tuple[Array, Array, Flight]) -> Array:
        events, hit, _ = carry
        return hit & (events < _MOST_EVENTS)

    def event(carry: tuple[Array, Array, Flight]) -> tuple[Array, Array, Flight]:
        events, _, flight = carry
        moment = time_of_impact(flight, heights)
        hit = (moment < 1 - 1e-6) & awake
        after: Flight = lax.cond(
            anywhere(hit), lambda f: _impact(f, heights, moment, hit), lambda f: f, flight
        )
        return events + 1, anywhere(hit), after

    first = (jnp.zeros((), jnp.int32), jnp.ones((), bool), flight)
    return lax.while_loop(more, event, first)[2]


def time_of_impact(flight: Flight, heights: Heights) -> Array:
    """Return the share of the remaining motion until a leg hits an edge; 2 if it does not.

    The distance between shapes is followed along their best separating axis.
    """
    first, second = for_both(lambda edge: _moment(flight, edge), edges_below(flight.end.x, heights))
    return jnp.minimum(first, second)


class _Search(NamedTuple):
    """A search for the moment at which the gap is TARGET."""

    steps: Array
    low: Array
    high: Array
    gap_low: Array
    gap_high: Array
    moment: Array
    found: Array


def _moment(flight: Flight, edge: Edge) -> Array:
    def gap_at(moment: Array) -> Array:
        pose = _between(flight.start, flight.end, moment)
        r = fusion_barrier(rotation(pose.angle))
        return separation(pose, r, LEG_CORNERS, LEG_NORMALS, edge)

    def search(s: _Search) -> _Search:
        """Bisect and interpolate in turns, as Box2D does."""
        slope = jnp.where(s.gap_high == s.gap_low, 1.0, s.gap_high - s.gap_low)
        interpolated = s.low + (TARGET - s.gap_low) * (s.high - s.low) / slope
        tried = jnp.where((s.steps & 1) == 1, interpolated, 0.5 * (s.low + s.high))
        gap = gap_at(tried)
        above = gap > TARGET
        return _Search(
            s.steps + 1,
            jnp.where(above, tried, s.low),
            jnp.where(above, s.high, tried),
            jnp.where(above, gap, s.gap_low),
            jnp.where(above, s.gap_high, gap),
            jnp.where(s.found, s.moment, tried),
            s.found | (jnp.abs(gap - TARGET) < TOLERANCE),
        )

    def searching(s: _Search) -> Array:
        return (s.steps < _MOST_ROOT_STEPS) & ~everywhere(s.found)

    zero = jnp.zeros_like(edge.x1)
    one = jnp.ones_like(zero)
    gap1, gap2 = fusion_barrier((gap_at(zero), gap_at(one)))
    at_once = (gap1 > 0) & (gap1 < TARGET + TOLERANCE)
    later = (gap1 >= TARGET + TOLERANCE) & (gap2 <= TARGET - TOLERANCE)
    begun = _Search(jnp.zeros((), jnp.int32), zero, one, gap1, gap2, one, ~later)
    moment = lax.while_loop(searching, search, begun).moment
    return jnp.where(at_once, 0.0, jnp.where(later, moment, 2.0))


def _impact(flight: Flight, heights: Heights, moment: Array, hit: Array) -> Flight:
    """Stop a leg that hits at its moment, and solve its contacts there."""
    moment = jnp.where(hit, moment, 0.0)
    pose = fusion_barrier(_between(flight.start, flight.end, moment))
    manifolds, touches, ground = updated(pose, heights, flight.touches, flight.ground)
    hit = hit & (touches[0].touching | touches[1].touching)

    def correct(carry: tuple[Array, Pose, Array]) -> tuple[Array, Pose, Array]:
        iteration, pose, fine = carry
        corrected, least = pushed_out(manifolds, pose, _CORRECTION_RATE)
        return iteration + 1, where(fine, pose, corrected), fine | (least >= _ENOUGH)

    def correcting(carry: tuple[Array, Pose, Array]) -> Array:
        return (carry[0] < _POSITION_ITERATIONS) & ~everywhere(carry[2])

    pose = lax.while_loop(correcting, correct, (jnp.zeros((), jnp.int32), pose, ~hit))[1]
    r = fusion_barrier(rotation(pose.angle))
    contacts = for_both(
        lambda manifold: fusion_barrier(prepared(moved(manifold, pose, r))), manifolds
    )

    # Box2D does not warm-start here, and it forgets the impulses.
    none = ContactImpulses(*[jnp.zeros_like(moment)] * 4)
    _, velocity = lax.fori_loop(
        0,
        _VELOCITY_ITERATIONS,
        lambda _, carry: solved_in_turn(contacts, *carry),
        ((none, none), flight.velocity),
    )
    elapsed = flight.elapsed + (1 - flight.elapsed) * moment
    seconds = (1 - elapsed) * SECONDS
    end = Pose(*(p + seconds * v for p, v in zip(pose, velocity, strict=True)))
    return where(hit, Flight(pose, end, velocity, elapsed, touches, ground), flight)


def _between(start: Pose, end: Pose, share: Array) -> Pose:
    return Pose(*(a + share * (b - a) for a, b in zip(start, end, strict=True)))

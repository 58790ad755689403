"""What is remembered of a leg's contacts from one step to the next, and the leg's flag."""

from typing import NamedTuple

import jax.numpy as jnp

from fedhql.environments.lunar_lander.contact_solver import ContactImpulses
from fedhql.environments.lunar_lander.contacts import Manifold, collide
from fedhql.environments.lunar_lander.geometry import (
    Array,
    Pose,
    for_both,
    fusion_barrier,
    rotation,
)
from fedhql.environments.lunar_lander.terrain import Edge, Heights, edges_below

Touches = tuple["Touch", "Touch"]  # with the edge of an even and of an odd number
Manifolds = tuple[Manifold, Manifold]


class Touch(NamedTuple):
    """The contact of a leg with an edge."""

    edge: Array  # number of the edge
    touching: Array
    feature1: Array
    feature2: Array
    impulses: ContactImpulses


def updated(
    leg: Pose, heights: Heights, touches: Touches, ground: Array
) -> tuple[Manifolds, Touches, Array]:
    """Return a leg's manifolds at this pose, the memory of them, and its flag.

    The flag follows Gymnasium's listener: a contact that begins sets it, one that ends clears it,
    and ends come last. So when a leg slides from one edge to the next, its flag is False while it
    touches.
    """
    edges = edges_below(leg.x, heights)
    r = fusion_barrier(rotation(leg.angle))

    def touch_of(edge: Edge, before: Touch) -> tuple[Manifold, Touch, Array, Array]:
        manifold = fusion_barrier(collide(leg, r, edge))
        is_same = edge.number == before.edge
        after = _remembered(manifold, edge.number, before, before.touching & is_same)
        begins = after.touching & ~(before.touching & is_same)
        ends = before.touching & ~(after.touching & is_same)
        return fusion_barrier((manifold, after, begins, ends))

    first, second = for_both(touch_of, edges, touches)
    begins, ends = first[2] | second[2], first[3] | second[3]
    ground = (ground | begins) & ~ends
    return (first[0], second[0]), (first[1], second[1]), ground


def _remembered(manifold: Manifold, edge: Array, before: Touch, is_known: Array) -> Touch:
    """Return the contact now; a point that was there before keeps its impulses.

    (Box2D's b2Contact::Update.)
    """
    kept = []
    old = before.impulses
    for number, feature in enumerate(manifold.features):
        known = is_known & (manifold.point_count > number)
        first = known & (feature == before.feature1)
        second = known & (feature == before.feature2) & ~first
        kept.append(jnp.where(first, old.normal1, jnp.where(second, old.normal2, 0.0)))
        kept.append(jnp.where(first, old.tangent1, jnp.where(second, old.tangent2, 0.0)))
    return Touch(edge, manifold.point_count > 0, *manifold.features, ContactImpulses(*kept))

"""What is remembered of the legs' contacts from one step to the next, and the legs' flags."""

from typing import NamedTuple

import jax.numpy as jnp

from fedhql.environments.lunar_lander.contact_solver import ContactImpulses
from fedhql.environments.lunar_lander.contacts import Manifold, collide
from fedhql.environments.lunar_lander.geometry import Array, Pose, computed_here, rotation
from fedhql.environments.lunar_lander.terrain import edges_below


class Touch(NamedTuple):
    """Contacts of two legs with the two edges below each; fields (edge, leg, M)."""

    edge: Array  # number of the edge
    touching: Array
    feature1: Array
    feature2: Array
    impulses: ContactImpulses


def updated(
    legs: Pose, heights: Array, touch: Touch, ground: Array
) -> tuple[Manifold, Touch, Array]:
    """Return the manifolds at these poses, the memory of them, and the legs' flags (2, M).

    A point that was there before keeps its impulses (b2Contact::Update). The flags follow
    Gymnasium's listener: a contact that begins sets a flag, one that ends clears it, and ends come
    last. So when a leg slides from one edge to the next, its flag is False while it touches.
    """
    edges = edges_below(legs.x, heights)
    manifold = computed_here(collide(legs, computed_here(rotation(legs.angle)), edges))
    same = edges.number == touch.edge
    before, now = touch.touching & same, manifold.point_count > 0
    begins = jnp.any(now & ~before, axis=0)
    ends = jnp.any(touch.touching & ~(now & same), axis=0)
    ground = jnp.where(ends, False, jnp.where(begins, True, ground))

    kept = []
    old = touch.impulses
    for number, feature in enumerate(manifold.features):
        known = before & (manifold.point_count > number)
        first = known & (feature == touch.feature1)
        second = known & (feature == touch.feature2) & ~first
        kept.append(jnp.where(first, old.normal1, jnp.where(second, old.normal2, 0.0)))
        kept.append(jnp.where(first, old.tangent1, jnp.where(second, old.tangent2, 0.0)))
    impulses = ContactImpulses(*kept)
    after = Touch(edges.number, now, *manifold.features, impulses)
    return computed_here((manifold, after, ground))

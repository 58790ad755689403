"""The ground: ten edges between eleven heights, 2 m apart; the landing pad is flat."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp

from fedhql.environments.lunar_lander.craft import HEIGHT, WIDTH
from fedhql.environments.lunar_lander.geometry import Array, numbered

CHUNKS = 11
HEIGHT_DRAWS = CHUNKS + 1
CHUNK = WIDTH / (CHUNKS - 1)
PAD_HEIGHT = HEIGHT / 4
HIGHEST_DRAW = HEIGHT / 2

Heights = tuple[Array, ...]


class Edge(NamedTuple):
    """An edge of the ground, from left to right."""

    number: Array
    x1: Array
    y1: Array
    x2: Array
    y2: Array


def terrain(drawn: Sequence[Array]) -> Heights:
    """Return the 11 heights from Gymnasium's 12 draws between 0 and HIGHEST_DRAW.

    Each height is 0.33 times the sum of three neighbours. Gymnasium's height[-1] is the last draw.
    """
    middle = CHUNKS // 2
    heights = [
        jnp.full_like(drawn[i], PAD_HEIGHT) if abs(i - middle) <= 2 else drawn[i]
        for i in range(HEIGHT_DRAWS)
    ]
    return tuple(0.33 * (heights[i - 1] + heights[i] + heights[i + 1]) for i in range(CHUNKS))


def edges_below(x: Array, heights: Heights) -> tuple[Edge, Edge]:
    """Return the two edges that a body narrower than 2 m around x can touch.

    The edge with the even number comes first, so that an edge keeps its place in this pair for as
    long as the body is near it.
    """
    edge = jnp.clip(jnp.floor(x / CHUNK), 0, CHUNKS - 2).astype(jnp.int32)
    side = jnp.where(x / CHUNK - edge < 0.5, edge - 1, edge + 1)
    other = jnp.where(side < 0, 1, jnp.where(side > CHUNKS - 2, CHUNKS - 3, side))
    is_even = (edge & 1) == 0
    even, odd = jnp.where(is_even, edge, other), jnp.where(is_even, other, edge)
    return _edge(even, heights[:-1:2], heights[1::2]), _edge(odd, heights[1:-1:2], heights[2::2])


def _edge(number: Array, left: Heights, right: Heights) -> Edge:
    """Return an edge; `left` and `right` are the ends of all edges with such a number."""
    y1, y2 = numbered(number >> 1, left), numbered(number >> 1, right)
    x1 = CHUNK * number.astype(jnp.float32)
    return Edge(number, x1, y1, x1 + CHUNK, y2)


def highest_between(left: Array, right: Array, heights: Heights) -> Array:
    """Return the greatest height of the ground from `left` to `right`."""
    highest = jnp.maximum(height_at(left, heights), height_at(right, heights))
    for i in range(CHUNKS):
        inside = (left < CHUNK * i) & (right > CHUNK * i)
        highest = jnp.where(inside, jnp.maximum(highest, heights[i]), highest)
    return highest


def height_at(x: Array, heights: Heights) -> Array:
    """Return the height of the ground at x. Beyond its ends the ground goes on level."""
    place = jnp.clip(x / CHUNK, 0, CHUNKS - 1)
    height = jnp.zeros_like(x)
    for i in range(CHUNKS):
        height = height + heights[i] * jnp.maximum(0.0, 1.0 - jnp.abs(place - i))
    return height

"""The ground: ten edges between eleven heights, 2 m apart; the landing pad is flat."""

from typing import NamedTuple

import jax.numpy as jnp

from fedhql.environments.lunar_lander.craft import HEIGHT, WIDTH
from fedhql.environments.lunar_lander.geometry import Array, numbered

CHUNKS = 11
HEIGHT_DRAWS = CHUNKS + 1
CHUNK = WIDTH / (CHUNKS - 1)
PAD_HEIGHT = HEIGHT / 4
HIGHEST_DRAW = HEIGHT / 2


class Edge(NamedTuple):
    """An edge of the ground, from left to right."""

    number: Array
    x1: Array
    y1: Array
    x2: Array
    y2: Array


def terrain(drawn: Array) -> Array:
    """Return the heights (11, M) from Gymnasium's draws (12, M) between 0 and HIGHEST_DRAW.

    Each height is 0.33 times the sum of three neighbours. Gymnasium's height[-1] is the last draw.
    """
    middle = CHUNKS // 2
    heights = [
        jnp.full_like(drawn[i], PAD_HEIGHT) if abs(i - middle) <= 2 else drawn[i]
        for i in range(HEIGHT_DRAWS)
    ]
    return jnp.stack([0.33 * (heights[i - 1] + heights[i] + heights[i + 1]) for i in range(CHUNKS)])


def edges_below(x: Array, heights: Array) -> Edge:
    """Return the two edges that a body narrower than 2 m around x can touch, as fields (2, ...).

    The edge with the even number comes first, so that an edge keeps its place in this pair for as
    long as the body is near it.
    """
    edge = jnp.clip(jnp.floor(x / CHUNK), 0, CHUNKS - 2).astype(jnp.int32)
    side = jnp.where(x / CHUNK - edge < 0.5, edge - 1, edge + 1)
    other = jnp.where(side < 0, 1, jnp.where(side > CHUNKS - 2, CHUNKS - 3, side))
    even = edge % 2 == 0
    number = jnp.stack([jnp.where(even, edge, other), jnp.where(even, other, edge)])
    points = [heights[i] for i in range(CHUNKS)]
    ends = [
        (numbered(number[k] // 2, points[k:-1:2]), numbered(number[k] // 2, points[k + 1 :: 2]))
        for k in (0, 1)
    ]
    y1, y2 = (jnp.stack([ends[0][end], ends[1][end]]) for end in (0, 1))
    x1 = CHUNK * number.astype(jnp.float32)
    return Edge(number, x1, y1, x1 + CHUNK, y2)


def highest_between(left: Array, right: Array, heights: Array) -> Array:
    """Return the greatest height of the ground from `left` to `right`."""
    highest = jnp.maximum(height_at(left, heights), height_at(right, heights))
    for i in range(CHUNKS):
        inside = (left < CHUNK * i) & (right > CHUNK * i)
        highest = jnp.where(inside, jnp.maximum(highest, heights[i]), highest)
    return highest


def height_at(x: Array, heights: Array) -> Array:
    """Return the height of the ground at x. Beyond its ends the ground goes on level."""
    place = jnp.clip(x / CHUNK, 0, CHUNKS - 1)
    height = jnp.zeros_like(x)
    for i in range(CHUNKS):
        height = height + heights[i] * jnp.maximum(0.0, 1.0 - jnp.abs(place - i))
    return height

"""Where a leg touches an edge of the ground: Box2D's manifold (b2CollideEdgeAndPolygon).

A manifold has up to two points. Each carries a feature number, which says what meets what, so that
the next step finds the impulse of the same point again.
"""

from typing import NamedTuple

import jax.numpy as jnp

from fedhql.environments.lunar_lander.craft import LEG_CORNERS, LEG_NORMALS, SKIN
from fedhql.environments.lunar_lander.geometry import (
    Array,
    Pose,
    Rotation,
    Vector,
    dot,
    fusion_barrier,
    less,
    numbered,
    turned,
    turned_back,
    where,
)
from fedhql.environments.lunar_lander.terrain import Edge

# A feature is a corner or a side (0 to 7) of both shapes, and which kind each is.
_LEG_FEATURE, _LEG_IS_FACE, _EDGE_IS_VERTEX = 8, 256, 512
# Box2D takes a side of the leg as the reference only if it is clearly better than the edge.
_RELATIVE_TOLERANCE, _ABSOLUTE_TOLERANCE = 0.98, 0.001


class Manifold(NamedTuple):
    """The contact of one leg with one edge; the edge is at rest in the world."""

    point_count: Array  # 0, 1 or 2 points
    on_leg: Array  # True if the reference side is the leg's, and the points are the edge's
    # The reference side and the points, each in the frame of its own body (the ground's is the
    # world), for the position correction.
    local_normal: Vector
    local_point: Vector
    local_points: tuple[Vector, Vector]
    features: tuple[Array, Array]
    normal: Vector  # in the world, from the ground to the leg
    arms: tuple[Vector, Vector]  # from the leg's centre to the points


class _Point(NamedTuple):
    at: Vector
    feature: Array


def separation(
    pose: Pose,
    r: Rotation,
    corners: tuple[tuple[float, float], ...],
    normals: tuple[tuple[float, float], ...],
    edge: Edge,
) -> Array:
    """Return the distance of a polygon from an edge, along the best separating axis."""
    start, end = Vector(edge.x1, edge.y1), Vector(edge.x2, edge.y2)
    up = _upward_normal(edge)
    above = dot(up, Vector(pose.x - edge.x1, pose.y - edge.y1)) > 0
    up = where(above, up, Vector(-up.x, -up.y))
    of_edge, of_side = jnp.full_like(edge.x1, jnp.inf), jnp.full_like(edge.x1, -jnp.inf)
    for corner, normal in zip(corners, normals, strict=True):
        at = _placed(pose, r, corner)
        of_edge = jnp.minimum(of_edge, dot(up, less(at, start)))
        outward = _turned_constant(r, normal)
        gap = jnp.minimum(dot(outward, less(start, at)), dot(outward, less(end, at)))
        of_side = jnp.maximum(of_side, gap)
    return jnp.maximum(of_edge, of_side)


def collide(pose: Pose, r: Rotation, edge: Edge) -> Manifold:
    """Return the manifold of a leg and an edge."""
    start, end = Vector(edge.x1, edge.y1), Vector(edge.x2, edge.y2)
    up = _upward_normal(edge)
    # Box2D's normal of an edge points down here, because the edge runs from left to right.
    front = dot(up, less(Vector(pose.x, pose.y), start)) <= 0
    facing = where(front, Vector(-up.x, -up.y), up)
    corners = [_placed(pose, r, corner) for corner in LEG_CORNERS]
    normals = [_turned_constant(r, normal) for normal in LEG_NORMALS]

    of_edge = of_side = least = jnp.zeros_like(edge.x1)
    side = against = jnp.zeros_like(edge.number)
    for k in range(4):
        gap_edge = dot(facing, less(corners[k], start))
        gap_side = jnp.minimum(
            dot(normals[k], less(start, corners[k])), dot(normals[k], less(end, corners[k]))
        )
        alignment = dot(facing, normals[k])
        if k == 0:
            of_edge, of_side, least = gap_edge, gap_side, alignment
            continue
        side, against = (
            jnp.where(gap_side > of_side, k, side),
            jnp.where(alignment < least, k, against),
        )
        of_edge, of_side = jnp.minimum(of_edge, gap_edge), jnp.maximum(of_side, gap_side)
        least = jnp.minimum(least, alignment)
    of_edge, of_side, side, against, corners, normals, facing = fusion_barrier(
        (of_edge, of_side, side, against, corners, normals, facing)
    )
    near = (of_edge <= SKIN) & (of_side <= SKIN)
    on_leg = of_side > _RELATIVE_TOLERANCE * of_edge + _ABSOLUTE_TOLERANCE

    first = jnp.where(on_leg, side, against)
    second = (first + 1) & 3
    corner1, corner2 = _pick(first, corners), _pick(second, corners)
    leg_normal = _pick(first, normals)
    reference_normal = where(on_leg, leg_normal, facing)
    reference1 = where(on_leg, corner1, where(front, start, end))
    reference2 = where(on_leg, corner2, where(front, end, start))
    number1 = jnp.where(on_leg, first, 1 - front.astype(jnp.int32))
    number2 = jnp.where(on_leg, second, front.astype(jnp.int32))
    edge_feature = _LEG_IS_FACE + _LEG_FEATURE * first
    points = (
        _Point(where(on_leg, start, corner1), jnp.where(on_leg, edge_feature, first)),
        _Point(where(on_leg, end, corner2), jnp.where(on_leg, edge_feature, second)),
    )
    (points, reference_normal, reference1, reference2, number1, number2, first, on_leg, near) = (
        fusion_barrier(
            (
                points,
                reference_normal,
                reference1,
                reference2,
                number1,
                number2,
                first,
                on_leg,
                near,
            )
        )
    )
    along = Vector(reference_normal.y, -reference_normal.x)
    back = Vector(-along.x, -along.y)
    points, crosses1 = _clipped(points, along, dot(along, reference1), number1, on_leg)
    points, crosses2 = _clipped(points, back, dot(back, reference2), number2, on_leg)
    points, near = fusion_barrier((points, near & crosses1 & crosses2))

    gaps = [dot(reference_normal, less(point.at, reference1)) for point in points]
    kept = [near & (gap <= SKIN) for gap in gaps]
    points = (where(kept[0], points[0], points[1]), points[1])
    gaps[0] = jnp.where(kept[0], gaps[0], gaps[1])

    away = [less(point.at, pose) for point in points]
    local_points = [
        where(on_leg, point.at, turned_back(r, arm))
        for point, arm in zip(points, away, strict=True)
    ]
    # A point of the world manifold lies half way between the two surfaces.
    arms = [
        Vector(arm.x - 0.5 * gap * reference_normal.x, arm.y - 0.5 * gap * reference_normal.y)
        for arm, gap in zip(away, gaps, strict=True)
    ]
    inward = Vector(-reference_normal.x, -reference_normal.y)
    return Manifold(
        kept[0].astype(jnp.int32) + kept[1].astype(jnp.int32),
        on_leg,
        where(on_leg, _pick_constant(first, LEG_NORMALS), reference_normal),
        where(on_leg, _pick_constant(first, LEG_CORNERS), reference1),
        (local_points[0], local_points[1]),
        (points[0].feature, points[1].feature),
        where(on_leg, inward, reference_normal),
        (arms[0], arms[1]),
    )


def moved(manifold: Manifold, pose: Pose, r: Rotation) -> Manifold:
    """Return the manifold of the same features at another pose of the leg."""
    normal = where(manifold.on_leg, turned(r, manifold.local_normal), manifold.local_normal)
    on_leg = turned(r, manifold.local_point)
    reference = where(manifold.on_leg, on_leg, less(manifold.local_point, pose))
    arms = []
    for point in manifold.local_points:
        arm = where(manifold.on_leg, less(point, pose), turned(r, point))
        gap = dot(less(arm, reference), normal)
        arms.append(Vector(arm.x - 0.5 * gap * normal.x, arm.y - 0.5 * gap * normal.y))
    outward = where(manifold.on_leg, Vector(-normal.x, -normal.y), normal)
    return manifold._replace(normal=outward, arms=(arms[0], arms[1]))


def _clipped(
    points: tuple[_Point, _Point], direction: Vector, offset: Array, number: Array, on_leg: Array
) -> tuple[tuple[_Point, _Point], Array]:
    """Clip a segment to direction·p <= offset; also return whether any of it is left."""
    left, right = points
    d1, d2 = dot(direction, left.at) - offset, dot(direction, right.at) - offset
    inside1, inside2 = d1 <= 0, d2 <= 0
    span = d1 - d2
    share = d1 / jnp.where(span == 0, 1.0, span)
    cut = _Point(
        Vector(
            left.at.x + share * (right.at.x - left.at.x),
            left.at.y + share * (right.at.y - left.at.y),
        ),
        _EDGE_IS_VERTEX
        + _LEG_FEATURE * number
        + (left.feature & 7)
        + _LEG_IS_FACE * on_leg.astype(jnp.int32),
    )
    clipped = (where(inside1, left, right), where(inside1 & inside2, right, cut))
    return fusion_barrier((clipped, inside1 | inside2))


def _upward_normal(edge: Edge) -> Vector:
    x, y = edge.x2 - edge.x1, edge.y2 - edge.y1
    length = jnp.sqrt(x * x + y * y)
    return Vector(-y / length, x / length)


def _placed(pose: Pose, r: Rotation, corner: tuple[float, float]) -> Vector:
    x, y = corner
    return Vector(pose.x + r.cos * x - r.sin * y, pose.y + r.sin * x + r.cos * y)


def _turned_constant(r: Rotation, vector: tuple[float, float]) -> Vector:
    x, y = vector
    return Vector(r.cos * x - r.sin * y, r.sin * x + r.cos * y)


def _pick(index: Array, vectors: list[Vector]) -> Vector:
    return Vector(numbered(index, [v.x for v in vectors]), numbered(index, [v.y for v in vectors]))


def _pick_constant(index: Array, vectors: tuple[tuple[float, float], ...]) -> Vector:
    return Vector(
        numbered(index, [x for x, _ in vectors]), numbered(index, [y for _, y in vectors])
    )

"""Vectors, rotations and poses in the plane.

All physics here is elementwise over lanes: a field is an array whose last axis is M lanes, or
whatever else broadcasts with it. No function looks at another lane. In a GPU kernel, which steps
one craft, a field is a number without axes.
"""

from collections.abc import Callable, Sequence
from math import pi
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array
Tree = TypeVar("Tree")


class Vector(NamedTuple):
    """A point or a direction."""

    x: Array
    y: Array


class Rotation(NamedTuple):
    """The cosine and the sine of an angle."""

    cos: Array
    sin: Array


class Pose(NamedTuple):
    """The centre of mass of a body, and its angle."""

    x: Array
    y: Array
    angle: Array


class Velocity(NamedTuple):
    """The velocity of the centre of mass, and the angular velocity."""

    x: Array
    y: Array
    spin: Array


def dot(a: Vector, b: Vector) -> Array:
    return a.x * b.x + a.y * b.y


def cross(a: Vector, b: Vector) -> Array:
    return a.x * b.y - a.y * b.x


def less(a: Vector, b: Vector | Pose) -> Vector:
    """Return a - b."""
    return Vector(a.x - b.x, a.y - b.y)


def turned(r: Rotation, v: Vector) -> Vector:
    """Rotate a vector of the body into the world."""
    return Vector(r.cos * v.x - r.sin * v.y, r.sin * v.x + r.cos * v.y)


def turned_back(r: Rotation, v: Vector) -> Vector:
    """Rotate a vector of the world into the body."""
    return Vector(r.cos * v.x + r.sin * v.y, r.cos * v.y - r.sin * v.x)


def rotation(angle: Array) -> Rotation:
    """Return cosine and sine, with errors below 2e-7 for angles up to 100.

    XLA's own functions take 30 ns for a number on a CPU, which is more than the rest of a step in
    flight. The polynomials are those of the Cephes library.
    """
    quarter = jnp.floor(angle * (2 / pi) + 0.5)
    # π/2 in three parts, so that the subtraction is exact.
    rest = angle - quarter * 1.5703125 - quarter * 4.837512969970703e-4
    rest = rest - quarter * 7.549789948768648e-8
    square = rest * rest
    sin = rest + rest * square * (
        -1.6666654611e-1 + square * (8.3321608736e-3 - square * 1.9515295891e-4)
    )
    cos = (
        1.0
        - 0.5 * square
        + square
        * square
        * (4.166664568298827e-2 + square * (-1.388731625493765e-3 + square * 2.443315711809948e-5))
    )
    turns = quarter.astype(jnp.int32)
    swapped = (turns & 1) == 1
    sin, cos = jnp.where(swapped, cos, sin), jnp.where(swapped, sin, cos)
    return Rotation(
        jnp.where(((turns + 1) & 2) == 2, -cos, cos), jnp.where((turns & 2) == 2, -sin, sin)
    )


def where(condition: Array, yes: Tree, no: Tree) -> Tree:
    """Select between two trees of arrays, lane by lane."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def numbered(index: Array, choices: Sequence[Array | float]) -> Array:
    """Return choices[index] without a gather."""
    found = choices[0] * jnp.ones_like(index, dtype=jnp.float32)
    for number, choice in enumerate(choices[1:], start=1):
        found = jnp.where(index == number, choice, found)
    return found


def for_both(function: Callable[..., Tree], *pairs: Any) -> tuple[Tree, Tree]:
    """Return the results of a function for the first and for the second of each pair.

    With lanes this is one call with arrays (2, ..., M). In a GPU kernel a number has no axes, and
    the function is called twice.
    """
    both = [tuple(pair[number] for pair in pairs) for number in (0, 1)]
    shape = jnp.broadcast_shapes(*(leaf.shape for leaf in jax.tree.leaves(both)))
    if not shape:
        return function(*both[0]), function(*both[1])
    stacked = jax.tree.map(lambda a, b: jnp.stack([a, b]), *both)
    results = jax.tree.map(lambda a: jnp.broadcast_to(a, (2, *shape)), function(*stacked))
    first, second = (jax.tree.map(lambda a, n=number: a[n], results) for number in (0, 1))
    return first, second


def anywhere(condition: Array) -> Array:
    return jnp.any(condition) if condition.shape else condition


def everywhere(condition: Array) -> Array:
    return jnp.all(condition) if condition.shape else condition


def fusion_barrier(values: Tree) -> Tree:
    """Return `values`, and keep XLA on a CPU from computing them again for each use.

    XLA on a CPU fuses a number into every expression that uses it, without regard for the cost; a
    chain of such fusions grows exponentially. It ignores `optimization_barrier`. It does not fuse
    across a loop whose number of rounds it cannot know.
    """
    if not jax.tree.leaves(values)[0].shape:  # in a GPU kernel
        return values
    leaves = jax.tree.leaves(values)
    probe = next(leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)).ravel()[0]
    rounds = 2 - (probe > -3e38).astype(jnp.int32)  # 1; 2 if NaN, which changes nothing
    zeros = jax.tree.map(jnp.zeros_like, values)
    return lax.fori_loop(0, rounds, lambda _, __: values, zeros)

"""Hand-written policies for LunarLander: states (M, 8) and draws (M,) -> actions (M,).

They take their array library from the states, so that they also work inside a compiled program.
"""

from collections.abc import Callable, Mapping
from typing import Any

Array = Any  # a NumPy or JAX array
Policy = Callable[[Array, Array], Array]


def random_policy(seen: Array, draws: Array) -> Array:
    return (4 * draws).astype(int)


def landing_policy(seen: Array, draws: Array) -> Array:
    """Sink towards the pad, more slowly near the ground; brake when a leg is down."""
    xp = seen.__array_namespace__()
    x, y, _, y_speed, _, _, left, right = seen.T
    down = left + right > 0
    turn = xp.where(down, 0, _turn(seen))
    lift = xp.where(down, -0.5 * y_speed, 0.5 * (0.5 * xp.abs(x) - y - y_speed))
    return _fire(turn, lift)


POLICIES: Mapping[str, Policy] = {"random": random_policy, "landing": landing_policy}


def hovering_policy(seen: Array, draws: Array) -> Array:
    return _fire(_turn(seen), 0.5 * (1 - seen[:, 1] - seen[:, 3]))


def _turn(seen: Array) -> Array:
    """Return how hard to turn left: lean against position and drift, and damp the spin."""
    x, _, x_speed, _, angle, spin, _, _ = seen.T
    lean = seen.__array_namespace__().clip(0.5 * x + x_speed, -0.4, 0.4)
    return 0.5 * (lean - angle) - spin


def _fire(turn: Array, lift: Array) -> Array:
    """Return the engine for the larger of turn and lift, or 0 if both are too small."""
    xp = turn.__array_namespace__()
    main = (lift > xp.abs(turn)) & (lift > 0.05)
    return xp.where(main, 2, xp.where(turn < -0.05, 3, xp.where(turn > 0.05, 1, 0)))

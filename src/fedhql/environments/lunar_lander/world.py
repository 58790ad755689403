"""All that Box2D remembers of a craft, and the order in which it visits the legs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedhql.environments.lunar_lander.craft import LEG_SIGNS
from fedhql.environments.lunar_lander.geometry import Array, Pose, Velocity, fusion_barrier
from fedhql.environments.lunar_lander.joints import JointImpulses
from fedhql.environments.lunar_lander.terrain import Heights
from fedhql.environments.lunar_lander.touch import Touches

SIGNS = tuple(np.float32(sign) for sign in LEG_SIGNS)
_LEG_ORDER = (1, 0)  # Box2D takes the newest joint first


class Leg(NamedTuple):
    """A leg, its joint and its contacts."""

    pose: Pose
    velocity: Velocity
    joint: JointImpulses
    limit: Array  # where the joint was in the last step: FREE, AT_LOWER or AT_UPPER
    touches: Touches
    ground: Array  # Gymnasium's flag: the leg is on the ground
    rest: Array  # seconds for which it has been at rest

    @property
    def touching(self) -> Array:
        return self.touches[0].touching | self.touches[1].touching


class World(NamedTuple):
    """All that Box2D remembers of a craft."""

    hull: Pose
    hull_velocity: Velocity
    hull_rest: Array
    legs: tuple[Leg, Leg]  # left and right
    heights: Heights

    @property
    def touching(self) -> Array:
        return self.legs[0].touching | self.legs[1].touching


def leg_by_leg(visit: Callable[..., Any], prepared: Any, carried: Any, hull: Any, legs: Any) -> Any:
    """Visit the right leg, then the left one.

    `visit` gets the sign, the entries of `prepared` and `carried` for this leg, the hull and the
    leg. It returns the last three anew.
    """
    carried, legs = list(carried), list(legs)
    for leg in _LEG_ORDER:
        carried[leg], hull, legs[leg] = fusion_barrier(
            visit(SIGNS[leg], prepared[leg], carried[leg], hull, legs[leg])
        )
    return tuple(carried), hull, tuple(legs)

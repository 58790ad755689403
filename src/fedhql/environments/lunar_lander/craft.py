"""The craft: shapes, masses and constants, from Gymnasium's lunar_lander.py and from Box2D.

The craft is a hull and two legs; a revolute joint with a motor and limits holds each leg. Lengths
are metres, 1/30 of Gymnasium's pixels. Masses are what Box2D 2.3.8 computes from shape and density.
"""

from math import pi, sqrt

FRAMES_PER_SECOND = 50
SECONDS = 1 / FRAMES_PER_SECOND
SCALE = 30.0  # pixels in a metre
WIDTH, HEIGHT = 600 / SCALE, 400 / SCALE  # of the viewport
GRAVITY = -10.0

# Box2D's solver (b2Settings.h) and the iterations that Gymnasium asks for.
VELOCITY_ITERATIONS = 180
POSITION_ITERATIONS = 60
LINEAR_SLOP = 0.005
ANGULAR_SLOP = 2 / 180 * pi
SKIN = 0.02  # the radius of an edge and of a polygon: shapes touch at this distance
MOST_LINEAR_CORRECTION = 0.2
MOST_ANGULAR_CORRECTION = 8 / 180 * pi
MOST_TRANSLATION = 2.0  # in one step
MOST_ROTATION = 0.5 * pi
SLEEPY_SPEED = 0.01
SLEEPY_SPIN = ANGULAR_SLOP
SECONDS_TO_SLEEP = 0.5

# Masses and moments of inertia about the centre of mass.
HULL_MASS, HULL_INERTIA = 4.816666603088379, 0.7838806193163016
LEG_MASS, LEG_INERTIA = 0.07111112028360367, 0.0017909470479935405
HULL_PER_MASS, HULL_PER_INERTIA = 1 / HULL_MASS, 1 / HULL_INERTIA
LEG_PER_MASS, LEG_PER_INERTIA = 1 / LEG_MASS, 1 / LEG_INERTIA
HULL_CENTRE = 0.10130719095  # the centre of mass is so far above the hull's origin
FRICTION = sqrt(0.1 * 0.2)  # of a leg (Box2D's default 0.2) on the ground (0.1)

# Corners in Box2D's order (anticlockwise), each with the normal of the side that starts there.
LEG_HALF_WIDTH, LEG_HALF_HEIGHT = 2 / SCALE, 8 / SCALE
LEG_CORNERS = (
    (-LEG_HALF_WIDTH, -LEG_HALF_HEIGHT),
    (LEG_HALF_WIDTH, -LEG_HALF_HEIGHT),
    (LEG_HALF_WIDTH, LEG_HALF_HEIGHT),
    (-LEG_HALF_WIDTH, LEG_HALF_HEIGHT),
)
LEG_NORMALS = ((0.0, -1.0), (1.0, 0.0), (0.0, 1.0), (-1.0, 0.0))
HULL_CORNERS = tuple(
    (x / SCALE, y / SCALE - HULL_CENTRE)  # relative to the centre of mass
    for x, y in ((17, -10), (17, 0), (14, 17), (-14, 17), (-17, 0), (-17, -10))
)
_SLANT = (17 / sqrt(298), 3 / sqrt(298))
HULL_NORMALS = (
    (1.0, 0.0),
    _SLANT,
    (0.0, 1.0),
    (-_SLANT[0], _SLANT[1]),
    (-1.0, 0.0),
    (0.0, -1.0),
)

# Joints: where the leg holds, which way the motor turns, and the limits. Left and right differ by
# the sign. The limits are Gymnasium's 0.4 to 0.9 less the reference angle 0.05, which pybox2d takes
# from the legs' angles; so they are 0.25 to both sides of 0.6.
LEG_SIGNS = (-1.0, 1.0)
LEG_AWAY, LEG_DOWN = 20 / SCALE, 18 / SCALE
LEG_ANGLE = 0.05  # at the start, times the sign
MOTOR_SPEED = 0.3  # times the sign
MOST_MOTOR_IMPULSE = 40 * SECONDS
MOTOR_MASS = 1 / (HULL_PER_INERTIA + LEG_PER_INERTIA)
JOINT_MIDDLE, JOINT_FREEDOM = -0.6, 0.25  # the middle times the sign

# Engines.
MAIN_POWER, SIDE_POWER = 13.0, 0.6
MAIN_OUTLET_Y = 4 / SCALE
SIDE_AWAY, SIDE_HEIGHT, SIDE_TILT = 12 / SCALE, 14 / SCALE, 17 / SCALE
MOST_START_FORCE = 1000.0

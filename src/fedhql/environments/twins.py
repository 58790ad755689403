"""Classic-control environments as pure array functions, equal to Gymnasium's step for step.

A twin holds the dynamics of one environment: start, step and observation. Time limits, restarts and
batches are the same for all twins; `lanes` has them. Constants and the order of operations follow
Gymnasium. The tests compare each twin with Gymnasium over 20,000 steps.

To add a twin: write its functions and add one `Twin` to `TWINS`. A state is a tuple of numbers, and
each number may be an array of any shape: an entry of the results depends on the same entry of the
arguments only. So the functions step one episode or many, also inside a GPU kernel. JAX 0.10 cannot
compile a kernel with a `where` between two constants, or with a function of one constant, such as
`-ones_like(x)`. The functions take their array library from their arguments, so that this module
does not load JAX.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import pi
from typing import Any

from fedhql.errors import EnvironmentRefused

Array = Any  # a NumPy or JAX array; results have the same type
Numbers = tuple[Array, ...]  # arrays of the same shape


@dataclass(frozen=True)
class Twin:
    """The dynamics of one environment: D numbers are observed, actions are 0..A-1."""

    observation_size: int
    action_count: int
    step_limit: int
    start_draws: int  # uniform numbers that `start` needs
    start: Callable[[Numbers], Numbers]  # draws in [0, 1) -> state
    step: Callable[[Numbers, Array], tuple[Numbers, Array, Array]]  # -> state, reward, terminated
    observe: Callable[[Numbers], Numbers]
    is_costly: bool = False  # whether a start or a step is very many operations
    in_kernels: bool = False  # whether Triton compiles the functions inside a DQN's kernel

    def __post_init__(self) -> None:
        if self.start_draws < 1:
            raise EnvironmentRefused(
                f"a Twin has start_draws = {self.start_draws}; allowed: 1 or more, because `start` "
                "takes the number of episodes from its draws"
            )


def _between(low: float, high: float) -> Callable[[Numbers], Numbers]:
    return lambda draws: tuple(low + (high - low) * draw for draw in draws)


def _library(numbers: Numbers) -> Any:
    return numbers[0].__array_namespace__()


def _cartpole_step(state: Numbers, action: Array) -> tuple[Numbers, Array, Array]:
    xp = _library(state)
    gravity, total_mass, pole_mass, half_length, seconds = 9.8, 1.1, 0.1, 0.5, 0.02
    x, x_dot, theta, theta_dot = state
    force = 20.0 * (action == 1) - 10.0
    cos, sin = xp.cos(theta), xp.sin(theta)
    push = (force + pole_mass * half_length * theta_dot**2 * sin) / total_mass
    theta_acc = (gravity * sin - cos * push) / (
        half_length * (4.0 / 3.0 - pole_mass * cos**2 / total_mass)
    )
    x_acc = push - pole_mass * half_length * theta_acc * cos / total_mass
    x, theta = x + seconds * x_dot, theta + seconds * theta_dot
    after = x, x_dot + seconds * x_acc, theta, theta_dot + seconds * theta_acc
    fallen = (xp.abs(x) > 2.4) | (xp.abs(theta) > 12 * 2 * pi / 360)
    return after, xp.ones_like(x), fallen


def _mountain_car_step(state: Numbers, action: Array) -> tuple[Numbers, Array, Array]:
    xp = _library(state)
    position, velocity = state
    velocity = velocity + (action - 1) * 0.001 + xp.cos(3 * position) * -0.0025
    velocity = xp.clip(velocity, -0.07, 0.07)
    position = xp.clip(position + velocity, -1.2, 0.6)
    velocity = xp.where((position == xp.float32(-1.2)) & (velocity < 0), 0.0, velocity)
    there = (position >= 0.5) & (velocity >= 0)
    return (position, velocity), xp.full_like(position, -1.0), there


def _mountain_car_start(draws: Numbers) -> Numbers:
    (position,) = _between(-0.6, -0.4)(draws)
    return position, _library(draws).zeros_like(position)


def _acrobot_step(state: Numbers, action: Array) -> tuple[Numbers, Array, Array]:
    xp = _library(state)
    torque = action.astype(xp.float32) - 1.0
    seconds = 0.2
    k1 = _acrobot_derivative(state, torque)
    k2 = _acrobot_derivative(_moved(state, seconds / 2, k1), torque)
    k3 = _acrobot_derivative(_moved(state, seconds / 2, k2), torque)
    k4 = _acrobot_derivative(_moved(state, seconds, k3), torque)
    slopes = tuple(a + 2 * b + 2 * c + d for a, b, c, d in zip(k1, k2, k3, k4, strict=True))
    theta1, theta2, velocity1, velocity2 = _moved(state, seconds / 6, slopes)
    theta1, theta2 = _wrapped(theta1), _wrapped(theta2)
    velocity1 = xp.clip(velocity1, -4 * pi, 4 * pi)
    velocity2 = xp.clip(velocity2, -9 * pi, 9 * pi)
    there = -xp.cos(theta1) - xp.cos(theta2 + theta1) > 1.0
    return (theta1, theta2, velocity1, velocity2), there - xp.ones_like(theta1), there


def _moved(state: Numbers, seconds: float, slopes: Numbers) -> Numbers:
    return tuple(x + seconds * slope for x, slope in zip(state, slopes, strict=True))


def _acrobot_derivative(state: Numbers, torque: Array) -> Numbers:
    """Return dstate/dt. Both links have mass 1, length 1, centre 0.5 and moment of inertia 1."""
    xp = _library(state)
    gravity = 9.8
    theta1, theta2, velocity1, velocity2 = state
    d1 = 0.25 + (1.25 + xp.cos(theta2)) + 2.0
    d2 = 0.25 + 0.5 * xp.cos(theta2) + 1.0
    phi2 = 0.5 * gravity * xp.cos(theta1 + theta2 - pi / 2)
    phi1 = (
        -0.5 * velocity2**2 * xp.sin(theta2)
        - velocity2 * velocity1 * xp.sin(theta2)
        + 1.5 * gravity * xp.cos(theta1 - pi / 2)
        + phi2
    )
    acceleration2 = (torque + d2 / d1 * phi1 - 0.5 * velocity1**2 * xp.sin(theta2) - phi2) / (
        1.25 - d2**2 / d1
    )
    acceleration1 = -(d2 * acceleration2 + phi1) / d1
    return velocity1, velocity2, acceleration1, acceleration2


def _wrapped(angle: Array) -> Array:
    """Wrap an angle into (-π, π]; an angle in that range stays exactly the same."""
    xp = angle.__array_namespace__()
    return angle - 2 * pi * xp.ceil((angle - pi) / (2 * pi))


def _acrobot_observe(state: Numbers) -> Numbers:
    xp = _library(state)
    theta1, theta2, velocity1, velocity2 = state
    return xp.cos(theta1), xp.sin(theta1), xp.cos(theta2), xp.sin(theta2), velocity1, velocity2


TWINS: Mapping[str, Twin] = {
    "CartPole-v1": Twin(
        4, 2, 500, 4, _between(-0.05, 0.05), _cartpole_step, lambda state: state, in_kernels=True
    ),
    "MountainCar-v0": Twin(
        2, 3, 200, 1, _mountain_car_start, _mountain_car_step, lambda state: state, in_kernels=True
    ),
    "Acrobot-v1": Twin(
        6, 3, 500, 4, _between(-0.1, 0.1), _acrobot_step, _acrobot_observe, in_kernels=True
    ),
}

"""Gymnasium's LunarLander with given random numbers, beside the twin and step by step.

M episodes run on both sides with the same starts, noise and actions. After each step the twin gets
Box2D's poses, velocities and impulses, so that every step starts from the same state.
"""

from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedhql.environments.lunar_lander import episode
from fedhql.environments.lunar_lander.contact_solver import ContactImpulses
from fedhql.environments.lunar_lander.episode import Episode, Options
from fedhql.environments.lunar_lander.geometry import Pose, Velocity
from fedhql.environments.lunar_lander.joints import JointImpulses
from fedhql.environments.lunar_lander.world import Leg
from fedhql.environments.twins import Numbers

Floats = NDArray[np.float32]
CALM = Options(-10.0, False, 15.0, 1.5)


class GivenNumbers:
    """A random generator for Gymnasium that returns what it is given, scaled to the range."""

    def __init__(self) -> None:
        self.given: list[float] = []  # in [0, 1)

    def uniform(self, low: float, high: float, size: tuple[int, ...] | None = None) -> Any:
        count = 1 if size is None else int(np.prod(size))
        taken, self.given = self.given[:count], self.given[count:]
        values = low + (high - low) * np.array(taken, dtype=np.float64)
        return float(values[0]) if size is None else values.reshape(size)

    def integers(self, low: int, high: int) -> int:
        return int(np.floor(low + (high - low) * self.given.pop(0)))


class Side(NamedTuple):
    """What one side shows after a step, for M episodes."""

    observations: Floats  # (M, 8)
    rewards: Floats
    terminated: NDArray[np.bool_]
    hull: Floats  # (M, 6) pose and velocity
    legs: Floats  # (M, 2, 6)


class Pairs:
    """M episodes in Gymnasium and in the twin."""

    def __init__(self, draws_MR: Floats, options: Options = CALM) -> None:
        self._options = options
        # gym.make would reset the generator; the class of the registered id does not.
        self.envs: list[Any] = []
        self.seen = np.empty((len(draws_MR), 8), dtype=np.float32)
        for row, draws in enumerate(draws_MR):
            env: Any = gym.make("LunarLander-v3", **options._asdict()).unwrapped
            env._np_random = GivenNumbers()
            heights, force, _, indices = np.split(draws, [12, 14, 16])
            wind: Any = indices if options.enable_wind else []
            env._np_random.given = [*heights, *force, *wind, 0.5, 0.5]
            self.seen[row] = env.reset()[0]
            self.envs.append(env)
        self.state = _start(options, jnp.asarray(draws_MR))

    def step(self, actions_M: NDArray[np.int64]) -> tuple[Side, Side]:
        """Step both sides from Box2D's states; return Gymnasium's and the twin's results."""
        before = _synced(self.state, *self._box2d())
        noise_M2 = np.stack(_noise(before), axis=-1)
        theirs = []
        for env, action, noise in zip(self.envs, actions_M, noise_M2, strict=True):
            # An episode that has ended goes on, which is harmless: the results are not used.
            env._np_random.given = list((noise.astype(np.float64) + 1) / 2)
            theirs.append(env.step(int(action))[:3])
        observations, rewards, terminated = (np.array(each) for each in zip(*theirs, strict=True))
        hull, legs, *_ = self._box2d()
        gymnasium = Side(observations, rewards, terminated, hull, legs)
        self.state, rewards_M, terminated_M = _step(self._options, before, jnp.asarray(actions_M))
        ours = _view(self.state)
        twin = Side(ours[0], np.asarray(rewards_M), np.asarray(terminated_M), *ours[1:])
        return gymnasium, twin

    def touching(self) -> NDArray[np.bool_]:
        """Return which crafts (M,) touch the ground with a leg, in Box2D."""
        return np.asarray(self._box2d()[3].any(axis=(1, 2, 3)))

    def _box2d(self) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        """Return bodies (M, 6) and (M, 2, 6), joints (M, 2, 4), contacts, and their edges."""
        M = len(self.envs)
        hull, legs = np.zeros((M, 6), np.float32), np.zeros((M, 2, 6), np.float32)
        joints = np.zeros((M, 2, 4), np.float32)
        contacts = np.zeros((M, 2, 2, 4), np.float32)  # [edge parity, leg, impulses]
        touching = np.zeros((M, 2, 2, 1), np.float32)
        for row, env in enumerate(self.envs):
            hull[row] = _body(env.lander)
            for number, leg in enumerate(env.legs):
                legs[row, number] = _body(leg)
                force = leg.joint.GetReactionForce(1.0)
                torque, motor = leg.joint.GetReactionTorque(1.0), leg.joint.GetMotorTorque(1.0)
                joints[row, number] = force[0], force[1], torque, motor
                for contact in (edge.contact for edge in leg.contacts):
                    (x1, _), (x2, _) = contact.fixtureA.shape.vertices
                    if contact.touching and x2 - x1 < 10:  # not the floor
                        parity = round(x1 / 2) % 2
                        touching[row, parity, number] = 1
                        points = contact.manifold.points[: contact.manifold.pointCount]
                        for k, point in enumerate(points):
                            contacts[row, parity, number, 2 * k] = point.normalImpulse
                            contacts[row, parity, number, 2 * k + 1] = point.tangentImpulse
        return hull, legs, joints, touching, contacts


def _body(body: Any) -> tuple[float, ...]:
    (x, y), velocity = body.worldCenter, body.linearVelocity
    return x, y, body.angle, velocity[0], velocity[1], body.angularVelocity


@partial(jax.jit, static_argnums=0)
def _start(options: Options, draws_MR: jax.Array) -> Numbers:
    return episode.start(options, tuple(draws_MR.T))


_step: Any = jax.jit(episode.step, static_argnums=0)


@jax.jit
def _noise(state: Numbers) -> tuple[jax.Array, jax.Array]:
    return episode.noise_of(episode.episode_of(state))


@jax.jit
def _synced(state: Numbers, hull: Any, legs: Any, joints: Any, _: Any, contacts: Any) -> Numbers:
    of: Episode = episode.episode_of(state)

    def leg(number: int) -> Leg:
        before, body = of.world.legs[number], legs[:, number].T
        touches = [
            touch._replace(impulses=ContactImpulses(*contacts[:, parity, number].T))
            for parity, touch in enumerate(before.touches)
        ]
        return before._replace(
            pose=Pose(*body[:3]),
            velocity=Velocity(*body[3:]),
            joint=JointImpulses(*joints[:, number].T),
            touches=(touches[0], touches[1]),
        )

    world = of.world._replace(
        hull=Pose(*hull.T[:3]), hull_velocity=Velocity(*hull.T[3:]), legs=(leg(0), leg(1))
    )
    return episode.numbers_of(of._replace(world=world))


def _view(state: Numbers) -> tuple[Floats, Floats, Floats]:
    world = episode.episode_of(state).world
    hull = np.stack([*world.hull, *world.hull_velocity], axis=-1)
    legs = [np.stack([*leg.pose, *leg.velocity], axis=-1) for leg in world.legs]
    return np.stack(episode.observed(world), axis=-1), hull, np.stack(legs, axis=1)

"""A linear agent: Sarsa(λ) on a Fourier basis (Konidaris, Osentoski and Thomas, 2011).

In an experiment file it is kind = "examples.mixed.fourier:FourierAgent", found when the
repository's root is the working directory or on PYTHONPATH.
"""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedhql.contract import Actions, States, Values
from fedhql.environments.make import action_count, make_environment
from fedhql.environments.replayable import ReplayableEnvironment

Array = NDArray[np.float64]


class FourierAgent:
    """A `BlackBoxAgent` whose values are linear in cos(π c · s), s scaled to [0, 1].

    It is also `Checkpointable`. Shape letters: D numbers of an observation, F features.
    """

    def __init__(
        self,
        *,
        env_id: str,
        discount: float,
        seed: int,
        low: Sequence[float],
        high: Sequence[float],
        order: int = 3,
        interacting: int = 2,
        learning_rate: float = 0.002,
        trace_decay: float = 0.9,
        epsilon: float = 0.05,
        improvement_learning_rate: float = 0.1,
        improvement_steps: int = 16,
    ) -> None:
        """Make the agent.

        `low` and `high` bound each number of an observation; what is outside is clipped. A feature
        has frequencies up to `order`, of at most `interacting` numbers.
        """
        env_seed, rng_seed = np.random.SeedSequence(seed).generate_state(2)
        env = make_environment(env_id)
        self._env = ReplayableEnvironment(env, int(env_seed))
        self._rng = np.random.default_rng(rng_seed)
        self._discount, self._trace_decay, self._epsilon = discount, trace_decay, epsilon
        self._improvement_learning_rate = improvement_learning_rate
        self._improvement_steps = improvement_steps
        self._low_D, self._high_D = np.array(low, dtype=float), np.array(high, dtype=float)
        frequencies = itertools.product(range(order + 1), repeat=len(self._low_D))
        kept = [c_D for c_D in frequencies if np.count_nonzero(c_D) <= interacting]
        self._frequencies_DF = np.pi * np.array(kept, dtype=float).T
        norms_F = np.linalg.norm(np.array(kept, dtype=float), axis=1)
        self._rates_F = learning_rate / np.where(norms_F > 0, norms_F, 1)
        self._weights_AF: Array = np.zeros((action_count(env), len(kept)))
        self._traces_AF = np.zeros_like(self._weights_AF)
        self._next: tuple[Array, int] | None = None  # features and action; None: a new episode

    def self_learn(self, env_steps: int) -> None:
        for _ in range(env_steps):
            if self._next is None:
                features_F = self._features(self._env.reset()[0])
                self._next = features_F, self._explore(features_F)
                self._traces_AF[:] = 0
            features_F, action = self._next
            observation, reward, terminated, truncated, _ = self._env.step(action)
            target, self._next = float(reward), None
            if not terminated:
                then_F = self._features(observation)
                then_action = self._explore(then_F)
                target += self._discount * float(self._weights_AF[then_action] @ then_F)
                self._next = None if truncated else (then_F, then_action)
            error = target - float(self._weights_AF[action] @ features_F)
            self._traces_AF *= self._discount * self._trace_decay
            self._traces_AF[action] += features_F
            self._weights_AF += error * self._rates_F * self._traces_AF

    def q_values(self, states: States) -> Values:
        return (self._features(states) @ self._weights_AF.T).astype(np.float32)

    def improve(self, states: States, actions: Actions, targets: Values) -> None:
        """Take κ steps of normalised least mean squares over each action's states."""
        features_BF = self._features(states)
        for action in np.unique(actions):
            mine_BF, targets_B = features_BF[actions == action], targets[actions == action]
            step = self._improvement_learning_rate / np.square(mine_BF).sum()
            weights_F = self._weights_AF[action]
            for _ in range(self._improvement_steps):
                weights_F += step * (targets_B - mine_BF @ weights_F) @ mine_BF

    def save(self, directory: Path) -> None:
        features_F, action = self._next or (np.zeros(0), None)
        np.savez(
            directory / "linear.npz",
            weights_AF=self._weights_AF,
            traces_AF=self._traces_AF,
            features_F=features_F,
        )
        position = {
            "action": action,
            "rng": self._rng.bit_generator.state,
            "environment": self._env.position(),
        }
        (directory / "position.json").write_text(json.dumps(position))

    def restore(self, directory: Path) -> None:
        position = json.loads((directory / "position.json").read_text())
        with np.load(directory / "linear.npz") as arrays:
            self._weights_AF, self._traces_AF = arrays["weights_AF"], arrays["traces_AF"]
            action = position["action"]
            self._next = None if action is None else (arrays["features_F"], action)
        self._rng.bit_generator.state = position["rng"]
        self._env.go_to(position["environment"])

    def close(self) -> None:
        self._env.close()

    def _features(self, states: States) -> Array:
        scaled = np.clip((states - self._low_D) / (self._high_D - self._low_D), 0, 1)
        return np.cos(scaled @ self._frequencies_DF)

    def _explore(self, features_F: Array) -> int:
        if self._rng.random() < self._epsilon:
            return int(self._rng.integers(len(self._weights_AF)))
        return int((self._weights_AF @ features_F).argmax())

"""Small agents of a user's own, and settings that run them in a moment."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from tests.known_mdps import ACTIONS, STATES, random_mdp

ENV, BUDGET = "tests.known_mdps:RandomMDP-v0", 600
QUICK = {
    "environment.discount": 0.9,
    "federation.query_batch": 8,
    "federation.horizon_steps": 4,
    "federation.self_learning_env_steps": 100,
    "evaluation.episodes": 2,
    "evaluation.best_episodes": 2,
}
TRANSITIONS_SAS, REWARDS_SA = random_mdp(0)


class PlainAgent:
    """Q-learning at random states, with nothing but the three methods."""

    def __init__(self, seed: int, learning_rate: float = 0.1) -> None:
        self.rng = np.random.default_rng(seed)
        self.learning_rate = learning_rate
        self.q_SA = np.zeros((STATES, ACTIONS))
        self.learned_env_steps = 0
        self.improvements = 0

    def self_learn(self, env_steps: int) -> None:
        for _ in range(env_steps):
            state, action = self.rng.integers(STATES), self.rng.integers(ACTIONS)
            then = self.rng.choice(STATES, p=TRANSITIONS_SAS[state, action])
            target = REWARDS_SA[state, action] + 0.9 * self.q_SA[then].max()
            self._move(state, action, target)
        self.learned_env_steps += env_steps

    def q_values(self, states: Any) -> Any:
        return self.q_SA[states]

    def improve(self, states: Any, actions: Any, targets: Any) -> None:
        self.improvements += 1
        for state, action, target in zip(states, actions, targets, strict=True):
            self._move(state, action, target)

    def _move(self, state: Any, action: Any, target: float) -> None:
        self.q_SA[state, action] += self.learning_rate * (target - self.q_SA[state, action])


class SavedAgent(PlainAgent):
    """The same, and its whole state can be saved."""

    closed = False

    def save(self, directory: Path) -> None:
        np.save(directory / "q.npy", self.q_SA)
        (directory / "rng.json").write_text(json.dumps(self.rng.bit_generator.state))

    def restore(self, directory: Path) -> None:
        self.q_SA = np.load(directory / "q.npy")
        self.rng.bit_generator.state = json.loads((directory / "rng.json").read_text())

    def close(self) -> None:
        self.closed = True


class RegisteredAgent(PlainAgent):
    """Leaves the number of its process in a directory."""

    def __init__(self, seed: int, register: str) -> None:
        super().__init__(seed)
        (Path(register) / str(os.getpid())).touch()

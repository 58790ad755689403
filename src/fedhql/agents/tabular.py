"""Watkins Q-learning on a table, as a black-box agent."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from fedhql.acting import PolicyFunction, greedily
from fedhql.agents.exploration import boltzmann, count_ucb, epsilon_greedy
from fedhql.agents.kind_settings import TabularSettings
from fedhql.agents.network_policy import load_network, write_network
from fedhql.agents.task import AgentTask
from fedhql.contract import Actions, States, Values
from fedhql.environments.make import Environment, action_count, first_observation
from fedhql.environments.replayable import ReplayableEnvironment
from fedhql.errors import AgentRefused


class TabularAgent:
    """A `BlackBoxAgent` with one value per (state, action).

    It is also `Checkpointable` and `Exportable`.
    """

    def __init__(
        self, settings: TabularSettings, env: Environment, *, discount: float, seed: int
    ) -> None:
        if not isinstance(env.observation_space, spaces.Discrete):
            raise AgentRefused(
                "kind = 'tabular' needs a Discrete observation space; this environment has "
                f"{env.observation_space}"
            )
        self._settings = settings
        self._discount = discount
        self._first_state = int(env.observation_space.start)
        env_seed, rng_seed = np.random.SeedSequence(seed).generate_state(2)
        self._env = ReplayableEnvironment(env, int(env_seed))
        self._rng = np.random.default_rng(rng_seed)
        shape = (int(env.observation_space.n), action_count(env))
        self._q_SA: NDArray[np.float64] = np.full(shape, settings.initial_value)
        self._visits_SA = np.zeros(shape, dtype=np.int64)
        self._state: int | None = None  # None: the next step begins an episode

    def self_learn(self, env_steps: int) -> None:
        for _ in range(env_steps):
            if self._state is None:
                self._state = self._row(self._env.reset()[0])
            action = self._explore(self._state)
            observation, reward, terminated, truncated, _ = self._env.step(action)
            self._learn(self._state, action, float(reward), self._row(observation), terminated)
            self._state = None if terminated or truncated else self._row(observation)

    def q_values(self, states: States) -> Values:
        rows = np.asarray(states, dtype=np.int64) - self._first_state
        return self._q_SA[rows].astype(np.float32)

    def improve(self, states: States, actions: Actions, targets: Values) -> None:
        """Take κ gradient steps of size α̃ on the mean squared error of each broadcast pair."""
        rows = np.asarray(states, dtype=np.int64) - self._first_state
        pairs, pair_of = np.unique(np.stack([rows, actions]), axis=1, return_inverse=True)
        mean_targets = np.bincount(pair_of, weights=targets) / np.bincount(pair_of)
        kept = (1 - self._settings.improvement_learning_rate) ** self._settings.improvement_steps
        at = tuple(pairs)
        self._q_SA[at] = kept * self._q_SA[at] + (1 - kept) * mean_targets

    def save(self, directory: Path) -> None:
        np.savez(directory / "table.npz", q_SA=self._q_SA, visits_SA=self._visits_SA)
        position = {
            "state": self._state,
            "rng": self._rng.bit_generator.state,
            "environment": self._env.position(),
        }
        (directory / "position.json").write_text(json.dumps(position))

    def restore(self, directory: Path) -> None:
        with np.load(directory / "table.npz") as table:
            self._q_SA, self._visits_SA = table["q_SA"], table["visits_SA"]
        position = json.loads((directory / "position.json").read_text())
        self._state = position["state"]
        self._rng.bit_generator.state = position["rng"]
        self._env.go_to(position["environment"])

    def export(self, directory: Path) -> None:
        """Write the table as a network without hidden layers, whose inputs are one-hot states."""
        no_biases = np.zeros(self._q_SA.shape[1], dtype=np.float32)
        write_network(directory, [(self._q_SA.astype(np.float32), no_biases)], "relu")

    def close(self) -> None:
        self._env.close()

    def _row(self, observation: int) -> int:
        return int(observation) - self._first_state

    def _explore(self, state: int) -> int:
        settings, q_A = self._settings, self._q_SA[state]
        match settings.exploration:
            case "epsilon-greedy":
                return epsilon_greedy(q_A, settings.epsilon, self._rng, random_ties=True)
            case "boltzmann":
                return boltzmann(q_A, settings.temperature, self._rng)
            case "ucb":
                return count_ucb(q_A, self._visits_SA[state], settings.confidence)

    def _learn(self, state: int, action: int, reward: float, then: int, terminated: bool) -> None:
        self._visits_SA[state, action] += 1
        rate = self._settings.learning_rate
        rate *= float(self._visits_SA[state, action]) ** -self._settings.learning_rate_decay
        future = 0.0 if terminated else self._discount * self._q_SA[then].max()
        self._q_SA[state, action] += rate * (reward + future - self._q_SA[state, action])


def build(settings: TabularSettings, task: AgentTask) -> TabularAgent:
    return TabularAgent(settings, task.make_environment(), discount=task.discount, seed=task.seed)


def load_policy(directory: Path, space: spaces.Space[Any]) -> PolicyFunction:
    """Return the policy of an exported agent."""
    return greedily(load_network(directory, first_observation(space)))

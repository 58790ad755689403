"""Environments with known optimal action values, from value iteration on their tables."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

STATES, ACTIONS, SUCCESSORS = 50, 4, 5


class RandomMDP(gym.Env[Any, Any]):
    """A continuing MDP: each pair leads to 5 of 50 states; rewards are uniform in [0, 1]."""

    def __init__(self, mdp_seed: int = 0) -> None:
        self.observation_space = spaces.Discrete(STATES)
        self.action_space = spaces.Discrete(ACTIONS)
        self.transitions_SAS, self.rewards_SA = random_mdp(mdp_seed)
        self._cumulative_SAS = self.transitions_SAS.cumsum(axis=2)
        self._state = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self._state = int(self.np_random.integers(STATES))
        return self._state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        reward = float(self.rewards_SA[self._state, action])
        below_S = self._cumulative_SAS[self._state, action]
        drawn = self.np_random.random() * below_S[-1]
        self._state = int(below_S.searchsorted(drawn, side="right"))
        return self._state, reward, False, False, {}


def random_mdp(mdp_seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rng = np.random.default_rng(mdp_seed)
    transitions_SAS = np.zeros((STATES, ACTIONS, STATES))
    for state in range(STATES):
        for action in range(ACTIONS):
            reached = rng.choice(STATES, SUCCESSORS, replace=False)
            transitions_SAS[state, action, reached] = rng.dirichlet(np.ones(SUCCESSORS))
    return transitions_SAS, rng.uniform(size=(STATES, ACTIONS))


def optimal_q(
    transitions_SAS: NDArray[np.float64], rewards_SA: NDArray[np.float64], discount: float
) -> NDArray[np.float64]:
    """Return Q* by value iteration to 1e-12.

    A row of transitions may sum to less than 1; the rest is the probability that the episode ends.
    """
    q_SA = np.zeros_like(rewards_SA)
    while True:
        better_SA: NDArray[np.float64] = rewards_SA + discount * transitions_SAS @ q_SA.max(axis=1)
        if np.abs(better_SA - q_SA).max() < 1e-12:
            return better_SA
        q_SA = better_SA


def frozen_lake_tables() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    env: Any = gym.make("FrozenLake-v1").unwrapped
    states, actions = env.observation_space.n, env.action_space.n
    transitions_SAS = np.zeros((states, actions, states))
    rewards_SA = np.zeros((states, actions))
    for state in range(states):
        for action in range(actions):
            for odds, reached, reward, terminated in env.P[state][action]:
                rewards_SA[state, action] += odds * reward
                if not terminated:
                    transitions_SAS[state, action, reached] += odds
    return transitions_SAS, rewards_SA


gym.register("RandomMDP-v0", entry_point=f"{__name__}:RandomMDP", max_episode_steps=100)

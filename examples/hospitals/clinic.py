"""Treat patients by a policy: what a hospital tests, and what the pictures show."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.hospitals.hiv import ACTIONS, DECISIONS, HIV, SPREAD
from fedhql.acting import GreedyAnswer, PolicyFunction, greedily
from fedhql.contract import States, Values

INPUTS = 6


@dataclass(frozen=True)
class Courses:
    """What happened to P patients in 200 decisions T."""

    states_PTS: NDArray[np.float64]  # T1, T2, I1, I2, V, E before each decision and at the end
    actions_PT: NDArray[np.int64]
    returns_P: NDArray[np.float64]


def treat(policy: PolicyFunction, patients: int, seed: int, spread: float = SPREAD) -> Courses:
    """Treat patients for 1,000 days. Patient p comes from seed + p, whatever the policy."""
    envs = [HIV(spread) for _ in range(patients)]
    seen_P = [env.reset(seed=seed + number)[0] for number, env in enumerate(envs)]
    states = [[env.state for env in envs]]
    actions, rewards = [], []
    for _ in range(DECISIONS):
        actions.append(policy(np.stack(seen_P)).actions)
        stepped = [env.step(action) for env, action in zip(envs, actions[-1], strict=True)]
        seen_P = [observation for observation, *_ in stepped]
        rewards.append([reward for _, reward, *_ in stepped])
        states.append([env.state for env in envs])
    return Courses(
        np.array(states).swapaxes(0, 1), np.array(actions).T, np.array(rewards).sum(axis=0)
    )


def always(action: int) -> PolicyFunction:
    """Return the policy that takes one action at every state."""

    def answer(states: States) -> GreedyAnswer:
        values = np.zeros((len(states), len(ACTIONS)), dtype=np.float32)
        return GreedyAnswer(values, np.full(len(states), action))

    return answer


def together(policies: Sequence[PolicyFunction]) -> PolicyFunction:
    """Return the consensus policy: the treatment with the largest mean of the policies' values."""

    def q_values(states: States) -> Values:
        q_NBA = np.stack([policy(states).values for policy in policies])
        return q_NBA.mean(axis=0, dtype=np.float64)

    return greedily(q_values)


def javascript_policy(state: Path) -> PolicyFunction:
    """Return the policy of agent.mjs, from the state that its member has saved."""
    weights: NDArray[Any] = np.array(json.loads(state.read_text())["agent"]["weights"])
    H = (len(weights) - len(ACTIONS)) // (INPUTS + 1 + len(ACTIONS))
    ends = np.cumsum([H * INPUTS, H, len(ACTIONS) * H])
    weights1, biases1, weights2, biases2 = np.split(weights, ends)

    def q_values(states: States) -> Values:
        hidden_BH = np.maximum(states @ weights1.reshape(H, INPUTS).T + biases1, 0)
        return hidden_BH @ weights2.reshape(len(ACTIONS), H).T + biases2

    return greedily(q_values)

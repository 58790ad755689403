"""Play many episodes with Gymnasium and with the twin, and compare how they are distributed."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedhql.agents.dqn.network import Network
from fedhql.environments.batch import EnvironmentBatch
from fedhql.environments.lunar_lander.twin import lunar_lander
from fedhql.environments.twin_batch import TwinBatch
from tests.environments.lunar_lander.policies import Policy, landing_policy, random_policy

Floats = NDArray[Any]
OUTCOMES = ("crashed", "flew out", "landed", "truncated")
TRAINED = Path(__file__).parent / "trained_policy.npy"


class Played(NamedTuple):
    """E episodes."""

    returns: Floats  # (E,)
    lengths: Floats  # (E,)
    outcomes: Floats  # (E,) an index of OUTCOMES
    last: Floats  # (E, 8) the last observations


def played(batch: EnvironmentBatch | TwinBatch, policy: Policy, size: int, episodes: int) -> Played:
    """Play in batches of `size` episodes."""
    rng = np.random.default_rng(0)
    returns, lengths, outcomes = np.zeros(episodes), np.zeros(episodes), np.zeros(episodes, int)
    last = np.zeros((episodes, 8), np.float32)
    for first in range(0, episodes, size):
        states = batch.reset(range(first, min(first + size, episodes)))
        while len(batch.running):
            rows = first + batch.running
            states, rewards, terminated, ended = batch.step(policy(states, rng.random(len(rows))))
            returns[rows] += rewards
            lengths[rows] += 1
            last[rows] = states
            out = np.abs(states[:, 0]) >= 1
            lost = np.where(out, 1, 0)
            outcomes[rows] = np.where(~terminated, 3, np.where(rewards == 100, 2, lost))
            states = states[~ended]
    batch.close()
    return Played(returns, lengths, outcomes, last)


def by_gymnasium(policy: Policy, episodes: int, **options: Any) -> Played:
    return played(EnvironmentBatch("LunarLander-v3", 50, options), policy, 50, episodes)


def by_twin(policy: Policy, episodes: int, size: int, **options: Any) -> Played:
    return played(TwinBatch(lunar_lander(**options), size), policy, size, episodes)


def trained_policy() -> Policy:
    """Return the greedy policy of a DQN that learned in Gymnasium; it lands."""
    network, parameters = Network(8, (32, 32), 4, "relu"), np.load(TRAINED)
    return lambda seen, _: np.asarray(network.q_values(parameters, seen).argmax(axis=1))


def constant_policy(action: int) -> Policy:
    return lambda seen, _: np.full(len(seen), action)


def policies() -> dict[str, Callable[[], Policy]]:
    return {
        "random": lambda: random_policy,
        "landing": lambda: landing_policy,
        "trained": trained_policy,
        **{f"always {action}": partial(constant_policy, action) for action in range(4)},
    }


def p_values(ours: Played, theirs: Played) -> dict[str, float]:
    """Return the p values: Kolmogorov-Smirnov for numbers, chi-squared for outcomes."""
    counts = np.array([np.bincount(side.outcomes, minlength=4) for side in (ours, theirs)])
    counts = counts[:, counts.sum(axis=0) > 0]
    same_outcome = 1.0 if counts.shape[1] == 1 else float(stats.chi2_contingency(counts)[1])
    return {
        "return": float(stats.ks_2samp(ours.returns, theirs.returns).pvalue),
        "length": float(stats.ks_2samp(ours.lengths, theirs.lengths).pvalue),
        "outcome": same_outcome,
    }

"""Evaluate agents greedily, in separate environments and outside every budget."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedhql.contract import States, Values
from fedhql.federation import ServerEnvironments


def evaluate(
    query_each: Callable[[list[States]], Sequence[Values]],
    environments: ServerEnvironments,
    seeds_NE: NDArray[np.uint32],
    episode_step_limit: int = 10_000,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Let each of N agents play E greedy episodes. Return the returns (N, E) and lengths (N, E).

    All episodes run side by side. `query_each` gets the states of each agent's own episodes.
    """
    N, E = seeds_NE.shape
    returns, lengths = np.zeros(N * E), np.zeros(N * E, dtype=np.int64)
    states = environments.reset(seeds_NE.ravel().tolist())
    for _ in range(episode_step_limit):
        running = environments.running  # ascending, so that rows stay grouped by agent
        if len(running) == 0:
            break
        owner = running // E
        q = np.concatenate(query_each([states[owner == n] for n in range(N)]))
        # An agent that answers NaN still has to act, so NaN ranks last.
        greedy = np.where(np.isnan(q), -np.inf, q).argmax(axis=1)
        next_states, rewards, _, ended = environments.step(greedy)
        returns[running] += rewards
        lengths[running] += 1
        states = next_states[~ended]
    return returns.reshape(N, E), lengths.reshape(N, E)

"""Evaluate policies greedily, in separate environments and outside every budget."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedhql.acting import GreedyAnswer, greedy_in
from fedhql.contract import States
from fedhql.federation import ServerEnvironments
from fedhql.federation.consensus import Centre
from fedhql.storage.records import ROUND, SELF_LEARNING


class Evaluation(NamedTuple):
    """Greedy episodes of P policies, E each. All arrays are (P, E)."""

    returns: NDArray[Any]
    discounted: NDArray[Any]
    lengths: NDArray[Any]
    start_values: NDArray[Any]  # the largest action value at the start


def evaluate(
    act_each: Callable[[list[States]], Sequence[GreedyAnswer]],
    environments: ServerEnvironments,
    seeds_PE: NDArray[np.uint32],
    *,
    discount: float,
    episode_step_limit: int = 10_000,
    centre: Centre | None = None,
) -> Evaluation:
    """Let each of N agents play E greedy episodes; with `centre`, the consensus policy too.

    The consensus policy is the last row: it acts greedily in the centre of all agents' values. All
    episodes run side by side. `act_each` gets the states of agent n's own episodes and those of
    the consensus policy's, so that the latter need no further exchanges.
    """
    P, E = seeds_PE.shape
    N = P if centre is None else P - 1
    returns, discounted, start_values = np.zeros((3, P * E))
    lengths = np.zeros(P * E, dtype=np.int64)
    states = environments.reset(seeds_PE.ravel().tolist())
    for number in range(episode_step_limit):
        running = environments.running  # ascending, so that rows stay grouped by policy
        if len(running) == 0:
            break
        owner = running // E
        shared = states[owner == N]  # of the consensus policy
        own = [states[owner == n] for n in range(N)]
        answers = act_each([np.concatenate([mine, shared]) for mine in own])
        both = list(zip(answers, own, strict=True))
        played = [
            GreedyAnswer(answer.values[: len(mine)], answer.actions[: len(mine)])
            for answer, mine in both
            if len(mine)
        ]
        if centre is not None and len(shared):
            played.append(greedy_in(centre([answer.values[len(mine) :] for answer, mine in both])))
        if number == 0:
            start_values[running] = np.concatenate([of.values for of in played]).max(axis=1)
        actions = np.concatenate([of.actions for of in played])
        next_states, rewards, _, ended = environments.step(actions)
        returns[running] += rewards
        discounted[running] += discount**number * rewards
        lengths[running] += 1
        states = next_states[~ended]
    return Evaluation(*(of.reshape(P, E) for of in (returns, discounted, lengths, start_values)))


def points_passed(consumed: float, interval: int, budget: int) -> int:
    """Return how many evaluations are due when so much is consumed of a budget.

    The i-th one is due at `i * interval`, the last one when less than a step is left.
    """
    return -(-budget // interval) if consumed > budget - 1 else int(consumed // interval)


def short(figure: float) -> float:
    """Return a figure with 5 digits: files stay small, and engines differ in later ones."""
    return float(f"{figure:.5g}")


def moments_of(chosen: str) -> tuple[str, ...]:
    """Return the moments that `evaluation.moments` stands for."""
    return (SELF_LEARNING, ROUND) if chosen == "both" else (chosen,)

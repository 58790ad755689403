"""How a policy acts in evaluation: by its own `act` if it has one, else greedily in its values."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedhql.contract import Actions, States, Values


class GreedyAnswer(NamedTuple):
    """The action values at B states, and the actions that the policy takes there."""

    values: Values  # (B, A)
    actions: Actions  # (B,)


PolicyFunction = Callable[[States], GreedyAnswer]  # of states (B, *obs)


def greedily(q_values: Callable[[States], Values]) -> PolicyFunction:
    """Return the policy that acts greedily in these values."""
    return lambda states: greedy_in(q_values(states))


def greedy_in(values: Values) -> GreedyAnswer:
    """Return the answer of a policy that takes the action of the largest value: (B, A).

    A policy that answers NaN still has to act, so NaN ranks last.
    """
    ranked = np.where(np.isnan(values), -np.inf, values)
    return GreedyAnswer(values, ranked.argmax(axis=1).astype(np.int64, copy=False))

"""How a policy acts in evaluation: by its own `act` if it has one, else greedily in its values."""

from typing import NamedTuple

import numpy as np

from fedhql.contract import Actions, Values


class GreedyAnswer(NamedTuple):
    """The action values at B states, and the actions that the policy takes there."""

    values: Values  # (B, A)
    actions: Actions  # (B,)


def greedy_in(values: Values) -> GreedyAnswer:
    """Return the answer of a policy that takes the action of the largest value: (B, A).

    A policy that answers NaN still has to act, so NaN ranks last.
    """
    ranked = np.where(np.isnan(values), -np.inf, values)
    return GreedyAnswer(values, ranked.argmax(axis=1).astype(np.int64, copy=False))

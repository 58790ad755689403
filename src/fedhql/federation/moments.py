"""FedUCB from statistics that can be merged: count, mean and M2, the sum of squared deviations.

What the server needs of N agents' values is their mean and their spread. Both follow from these
three, and those of two groups give those of both together (Chan, Golub and LeVeque, 1983). So a
tree of aggregators gives the server one small answer however many agents there are, and the same
scores, up to rounding; no aggregator keeps an agent's values.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Moments:
    """Of a group of agents' values at the same states and actions."""

    count: int
    mean_BA: NDArray[np.float64]
    m2_BA: NDArray[np.float64]

    def variance(self) -> NDArray[np.float64]:
        """The population's, as FedUCB has it."""
        return self.m2_BA / self.count


def moments(q_NBA: NDArray[np.floating]) -> Moments:
    """Of one group, at the bottom of the tree."""
    if q_NBA.ndim != 3 or q_NBA.shape[0] == 0:
        raise ValueError(f"q must be (N agents, B states, A actions), N >= 1; got {q_NBA.shape}")
    q_NBA = q_NBA.astype(np.float64)
    mean_BA = q_NBA.mean(axis=0)
    return Moments(len(q_NBA), mean_BA, ((q_NBA - mean_BA) ** 2).sum(axis=0))


def merged(groups: Iterable[Moments]) -> Moments:
    """Of all groups together."""
    return reduce(_merge, groups)


def _merge(a: Moments, b: Moments) -> Moments:
    count = a.count + b.count
    between_BA = b.mean_BA - a.mean_BA
    return Moments(
        count,
        a.mean_BA + between_BA * (b.count / count),
        a.m2_BA + b.m2_BA + between_BA**2 * (a.count * b.count / count),
    )


def fed_ucb_of(group: Moments, exploration: float) -> NDArray[np.float64]:
    """`fed_ucb` of the group's values -> scores (B, A)."""
    return group.mean_BA + exploration * np.sqrt(group.variance())


def fed_ucb_bernstein_of(group: Moments, bound: float, confidence: float) -> NDArray[np.float64]:
    """`fed_ucb_bernstein` of the group's values -> scores (B, A)."""
    return (
        group.mean_BA
        + np.sqrt(2 * confidence * group.variance() / group.count)
        + 3 * bound * confidence / group.count
    )

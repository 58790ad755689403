"""FedUCB from a cohort's moments: count, mean and M2, the sum of squared deviations.

FedUCB needs the mean and the spread of all agents' values. Both follow from the moments, and the
moments follow from ΣQ and ΣQ², which secure aggregation provides.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Moments:
    """The moments of a group of agents' values at the same states and actions."""

    count: int
    mean_BA: NDArray[np.float64]
    m2_BA: NDArray[np.float64]

    def variance(self) -> NDArray[np.float64]:
        """Return the population variance, which FedUCB uses."""
        return self.m2_BA / self.count


def moments(q_NBA: NDArray[np.floating]) -> Moments:
    """Return the moments of all agents' values (N, B, A)."""
    if q_NBA.ndim != 3 or q_NBA.shape[0] == 0:
        raise ValueError(f"q must be (N agents, B states, A actions), N >= 1; got {q_NBA.shape}")
    q_NBA = q_NBA.astype(np.float64)
    mean_BA = q_NBA.mean(axis=0)
    return Moments(len(q_NBA), mean_BA, ((q_NBA - mean_BA) ** 2).sum(axis=0))


def fed_ucb_of(group: Moments, exploration: float) -> NDArray[np.float64]:
    """Return what `fed_ucb` returns for the group's values: scores (B, A)."""
    return group.mean_BA + exploration * np.sqrt(group.variance())


def fed_ucb_bernstein_of(group: Moments, bound: float, confidence: float) -> NDArray[np.float64]:
    """Return what `fed_ucb_bernstein` returns for the group's values: scores (B, A)."""
    return (
        group.mean_BA
        + np.sqrt(2 * confidence * group.variance() / group.count)
        + 3 * bound * confidence / group.count
    )

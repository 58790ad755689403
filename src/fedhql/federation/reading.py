"""What the server reads out of one query, by its rule: from everybody's values, or from sums."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedhql.contract import Actions, Values
from fedhql.federation.cohort import Answers, PooledAnswers
from fedhql.federation.pooling import bellman_weights, weights_among
from fedhql.federation.rules import Rule

Floats = NDArray[np.float64]
Weights = Mapping[str, float]  # by name; rules without weights take no notice


class Reading(Protocol):
    """At the B states of a query."""

    def scores(self, weights: Weights) -> Floats:
        """-> (B, A)"""

    def centre(self, weights: Weights) -> Floats:
        """-> (B, A)"""

    def chosen(self, actions: Actions, weights: Weights) -> tuple[Floats, Floats]:
        """Centre and spread at one action for each state -> (B,), (B,)"""

    def loss(self, targets: Values, actions: Actions | None = None) -> Floats:
        """Agents' mean squared error to targets (B,) of actions, or (B, A) of all -> (B,)"""

    def weights(
        self,
        actions: Actions,
        rewards: Values,
        then: "Reading | None",
        terminated: NDArray[np.bool_],
        discount: float,
    ) -> Weights:
        """Of the step from here to where it led, `then`, if its states were asked about."""


def reading_of(answers: Answers | PooledAnswers, rule: Rule, names: Sequence[str]) -> Reading:
    if isinstance(answers, PooledAnswers):
        return FromSums(answers, rule)
    return FromValues(answers, rule, [names[n] for n in answers.members])


class FromValues:
    """Everybody's values are there, so any rule will do."""

    def __init__(self, answers: Answers, rule: Rule, names: Sequence[str]) -> None:
        self._q_NBA, self._rule, self._names = answers.q_NBA, rule, names

    def scores(self, weights: Weights) -> Floats:
        scores_BA: Floats = self._rule.scores(self._q_NBA, where=self._counted(weights))
        return scores_BA

    def centre(self, weights: Weights) -> Floats:
        centre_BA: Floats = self._rule.centre(self._q_NBA, where=self._counted(weights))
        return centre_BA

    def chosen(self, actions: Actions, weights: Weights) -> tuple[Floats, Floats]:
        q_NB, where_N = self._at(actions), self._counted(weights)
        return self._rule.centre(q_NB, where=where_N), self._rule.spread(q_NB, where=where_N)

    def loss(self, targets: Values, actions: Actions | None = None) -> Floats:
        if actions is None:
            every_B: Floats = ((targets - self._q_NBA) ** 2).mean(axis=(0, 2))
            return every_B
        chosen_B: Floats = ((targets - self._at(actions)) ** 2).mean(axis=0)
        return chosen_B

    def weights(
        self,
        actions: Actions,
        rewards: Values,
        then: Reading | None,
        terminated: NDArray[np.bool_],
        discount: float,
    ) -> Weights:
        """Of those that could be used at both queries of the step."""
        if not self._rule.weighted:
            return {}
        next_q_NBA, both = np.zeros_like(self._q_NBA), self._names
        if isinstance(then, FromValues):
            both = [name for name in both if name in then._names]
            next_q_NBA = next_q_NBA[: len(both)]
            next_q_NBA[:, ~terminated] = then._q_NBA[[then._names.index(name) for name in both]]
        mine = [self._names.index(name) for name in both]
        weights_N = bellman_weights(
            self._at(actions)[mine], rewards, next_q_NBA, terminated, discount=discount
        )
        return dict(zip(both, weights_N.tolist(), strict=True))

    def _at(self, actions: Actions) -> Floats:
        return self._q_NBA[:, np.arange(len(actions)), actions]

    def _counted(self, weights: Weights) -> Floats | bool:
        """How much each of them counts: all alike, but in a weighted rule."""
        if not self._rule.weighted:
            return True
        known_N = np.array([weights.get(name, 0.0) for name in self._names])
        return weights_among(known_N, np.ones(len(known_N)))


class FromSums:
    """Mean and deviation follow from ΣQ and ΣQ², and nobody's own values are there."""

    def __init__(self, answers: PooledAnswers, rule: Rule) -> None:
        self._pooled, self._rule = answers.pooled, rule

    def scores(self, weights: Weights) -> Floats:
        assert self._rule.scores_of is not None  # settings with another rule are refused
        scores_BA: Floats = self._rule.scores_of(self._pooled)
        return scores_BA

    def centre(self, weights: Weights) -> Floats:
        return self._pooled.mean_BA

    def chosen(self, actions: Actions, weights: Weights) -> tuple[Floats, Floats]:
        at = np.arange(len(actions)), actions
        return self._pooled.mean_BA[at], np.sqrt(self._pooled.variance()[at])

    def loss(self, targets: Values, actions: Actions | None = None) -> Floats:
        """The mean of (t - q)² is the variance of q and (t - q̄)²."""
        mean, variance = self._pooled.mean_BA, self._pooled.variance()
        if actions is None:
            every_B: Floats = (variance + (targets - mean) ** 2).mean(axis=1)
            return every_B
        at = np.arange(len(actions)), actions
        chosen_B: Floats = variance[at] + (targets - mean[at]) ** 2
        return chosen_B

    def weights(
        self,
        actions: Actions,
        rewards: Values,
        then: Reading | None,
        terminated: NDArray[np.bool_],
        discount: float,
    ) -> Weights:
        """All count alike."""
        return {}

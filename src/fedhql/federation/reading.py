"""What the server computes from one query by its rule: from all values, or from sums.

The same code serves NumPy and JAX arrays. Shape letters: N agents, B states, A actions.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from fedhql.federation.moments import Moments
from fedhql.federation.pooling import beside, weights_among
from fedhql.federation.rules import Rule

Array = Any  # a NumPy or JAX array


class Reading(Protocol):
    """The agents' values at the B states of a query, as the rule sees them."""

    def scores(self) -> Array:
        """Return the score of every action: (B, A)."""

    def centre(self) -> Array:
        """Return the centre of every action: (B, A)."""

    def lower_bound(self, pessimism: Array | float) -> Array:
        """Return centre - μ · spread of every action: (B, A). With μ = 0.0 it is the centre."""

    def chosen(self, actions: Array) -> tuple[Array, Array]:
        """Return centre and spread at one action a state: (B,), (B,)."""

    def loss(self, targets: Array, actions: Array | None = None) -> Array:
        """Return the agents' mean squared error to the targets: (B,).

        `targets` is (B,) with `actions`, or (B, A) for all actions.
        """


def at_actions(values: Array, actions: Array) -> Array:
    """Return the values (..., B, A) at one action a state: (..., B)."""
    xp = values.__array_namespace__()
    index = actions.reshape(*(1,) * (values.ndim - 2), -1, 1)
    return xp.take_along_axis(values, index, axis=-1)[..., 0]


class FromValues:
    """A reading from the values of every agent; any rule works."""

    def __init__(
        self,
        q_NBA: Array,
        rules: Sequence[Rule],
        *,
        rule: Array | int = 0,
        usable_N: Array | bool = True,
        weights_N: Array | None = None,
    ) -> None:
        """Read by `rules[rule]`; `rule` may be traced, so that lanes of one program differ in it.

        `usable_N` says which agents take part, in programs whose arrays cannot shrink. `weights_N`
        holds the agents' weights for a weighted rule.
        """
        self._q_NBA, self._rules, self._rule, self._usable_N = q_NBA, rules, rule, usable_N
        self._counted_N = None
        if weights_N is not None:
            xp = q_NBA.__array_namespace__()
            present_N = xp.ones(len(q_NBA)) if usable_N is True else usable_N
            self._counted_N = weights_among(weights_N, present_N)

    def scores(self) -> Array:
        return self._by_rule("scores", self._q_NBA)

    def centre(self) -> Array:
        return self._by_rule("centre", self._q_NBA)

    def lower_bound(self, pessimism: Array | float) -> Array:
        if isinstance(pessimism, float) and pessimism == 0:
            return self.centre()
        xp = self._q_NBA.__array_namespace__()
        margin_BA = pessimism * self._by_rule("spread", self._q_NBA)
        # In a lane without pessimism, an infinite spread must not count.
        return self.centre() - xp.where(pessimism > 0, margin_BA, 0)

    def chosen(self, actions: Array) -> tuple[Array, Array]:
        q_NB = at_actions(self._q_NBA, actions)
        return self._by_rule("centre", q_NB), self._by_rule("spread", q_NB)

    def loss(self, targets: Array, actions: Array | None = None) -> Array:
        everywhere = actions is None
        q = self._q_NBA if everywhere else at_actions(self._q_NBA, actions)
        squares = (targets - q) ** 2
        axes = (0, 2) if everywhere else 0
        return squares.mean(axis=axes, where=beside(self._usable_N, squares))

    def _by_rule(self, what: str, q: Array) -> Array:
        """Pool q (N, ...) over agents by "scores", "centre" or "spread" of the rule."""
        pooled = [
            getattr(rule, what)(q, where=self._counted_N if rule.weighted else self._usable_N)
            for rule in self._rules
        ]
        if len(pooled) == 1:
            return pooled[0]
        return q.__array_namespace__().stack(pooled)[self._rule]


class FromSums:
    """A reading from ΣQ and ΣQ² alone, which give the mean and the deviation."""

    def __init__(self, pooled: Moments, rule: Rule) -> None:
        self._pooled, self._rule = pooled, rule

    def scores(self) -> Array:
        assert self._rule.scores_from_sums is not None  # settings with another rule are refused
        return self._rule.scores_from_sums(self._pooled)

    def centre(self) -> Array:
        return self._pooled.mean_BA

    def lower_bound(self, pessimism: Array | float) -> Array:
        return self.centre() - pessimism * np.sqrt(self._pooled.variance())

    def chosen(self, actions: Array) -> tuple[Array, Array]:
        variance_B = at_actions(self._pooled.variance(), actions)
        return at_actions(self._pooled.mean_BA, actions), np.sqrt(variance_B)

    def loss(self, targets: Array, actions: Array | None = None) -> Array:
        """Return the mean of (t - q)², which is the variance of q plus (t - q̄)²."""
        mean, variance = self._pooled.mean_BA, self._pooled.variance()
        if actions is None:
            return (variance + (targets - mean) ** 2).mean(axis=1)
        return at_actions(variance, actions) + (targets - at_actions(mean, actions)) ** 2

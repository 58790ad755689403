"""The inter-agent rules by name: what the server reads out of all agents' values."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedhql.federation import pooling
from fedhql.federation.moments import Moments, fed_ucb_bernstein_of, fed_ucb_of
from fedhql.federation.ucb import fed_ucb, fed_ucb_bernstein

# q (N, ...), where=(N,) or True -> (...), for NumPy and JAX arrays.
Pool = Callable[..., Any]


@dataclass(frozen=True)
class Rule:
    """The centre stands wherever the paper has the mean; scores choose the server's actions."""

    centre: Pool
    spread: Pool
    scores: Pool  # of q (N, B, A)
    weighted: bool = False  # `where` may be weights, from the agents' own Bellman errors
    scores_of: Callable[[Moments], Any] | None = None  # None: it takes everybody's own values


def mean_std(exploration: Any) -> Rule:
    """The paper's practical rule: mean + λ · standard deviation."""

    def scores(q: Any, *, where: Any = True) -> Any:
        return fed_ucb(q, exploration, where=pooling.beside(where, q))

    scores_of = partial(fed_ucb_of, exploration=exploration)
    return Rule(pooling.mean, pooling.std, scores, scores_of=scores_of)


def bernstein(bound: Any, confidence: Any) -> Rule:
    """The paper's theoretical rule."""

    def scores(q: Any, *, where: Any = True) -> Any:
        return fed_ucb_bernstein(q, bound, confidence, where=pooling.beside(where, q))

    scores_of = partial(fed_ucb_bernstein_of, bound=bound, confidence=confidence)
    return Rule(pooling.mean, pooling.std, scores, scores_of=scores_of)


def median_mad(exploration: Any) -> Rule:
    """Fewer than half of the agents, whatever they say, cannot take the centre away."""
    return _upper_bound(pooling.median, pooling.mad, exploration)


def hampel(exploration: Any) -> Rule:
    """Values far from the median, by its own measure, are left out for each state and action."""
    return _upper_bound(pooling.near_mean, pooling.near_std, exploration)


def trimmed(exploration: Any, trim: Any) -> Rule:
    """`trim` agents at each end, or that share of them, are left out for each state and action."""
    centre, spread = pooling.trimmed_mean, pooling.trimmed_std
    return _upper_bound(partial(centre, trim=trim), partial(spread, trim=trim), exploration)


def bellman_weighted(exploration: Any) -> Rule:
    """Agents count by how little their values contradict themselves on what the server saw."""
    centre, spread = pooling.weighted_mean, pooling.weighted_std
    return _upper_bound(centre, spread, exploration, weighted=True)


def _upper_bound(centre: Pool, spread: Pool, exploration: Any, *, weighted: bool = False) -> Rule:
    def scores(q: Any, *, where: Any = True) -> Any:
        return centre(q, where=where) + exploration * spread(q, where=where)

    return Rule(centre, spread, scores, weighted)


# Each with the numbers it takes, as settings and arms call them.
RULES: dict[str, tuple[Callable[..., Rule], tuple[str, ...]]] = {
    "mean-std": (mean_std, ("exploration",)),
    "bernstein": (bernstein, ("bound", "confidence")),
    "median-mad": (median_mad, ("exploration",)),
    "hampel": (hampel, ("exploration",)),
    "trimmed": (trimmed, ("exploration", "trim")),
    "bellman-weighted": (bellman_weighted, ("exploration",)),
}

OF_SUMS = ("mean-std", "bernstein")  # which can be computed from ΣQ and ΣQ²


def rule_named(name: str, numbers: Any) -> Rule:
    """With its numbers from the attributes of `numbers`, which may be traced ones."""
    build, keys = RULES[name]
    return build(*(getattr(numbers, key) for key in keys))

"""The federation rules, one record each: how the server combines all agents' values.

To add a rule: write its centre and spread (see `pooling`), build a `Rule` from them, and add one
`RuleSpec` to `RULES`. Settings, arms, error texts, both engines and the tests derive from it. A
rule outside this package is a `RuleSpec` that the settings name as `rule = "package.module:NAME"`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fedhql.errors import SettingsError
from fedhql.federation import pooling
from fedhql.federation.moments import Moments, fed_ucb_bernstein_of, fed_ucb_of
from fedhql.federation.ucb import fed_ucb, fed_ucb_bernstein
from fedhql.plugins import import_plugin, is_plugin

# q (N, ...), where=(N,) or True -> (...), for NumPy and JAX arrays.
Pool = Callable[..., Any]


@dataclass(frozen=True)
class Rule:
    """A rule with its numbers. The centre replaces the mean of the paper's equations."""

    centre: Pool
    spread: Pool
    scores: Pool  # of q (N, B, A); the server takes the action with the highest score
    weighted: bool = False  # then `where` holds the agents' weights, by their Bellman errors
    scores_from_sums: Callable[[Moments], Any] | None = None


@dataclass(frozen=True)
class RuleSpec:
    """The record of one rule."""

    build: Callable[..., Rule]  # called with the numbers, in order; they may be traced
    numbers: tuple[str, ...] = ("exploration",)  # settings of [federation] that the rule takes
    # (moments, *numbers) -> scores, if the rule needs only ΣQ and ΣQ²; secure aggregation needs it.
    from_sums: Callable[..., Any] | None = None
    weighted: bool = False


def upper_bound(centre: Pool, spread: Pool, exploration: Any) -> Rule:
    """Return the rule whose scores are centre + λ · spread."""

    def scores(q: Any, *, where: Any = True) -> Any:
        return centre(q, where=where) + exploration * spread(q, where=where)

    return Rule(centre, spread, scores)


def mean_std(exploration: Any) -> Rule:
    """Return the paper's practical rule: mean + λ · standard deviation."""

    def scores(q: Any, *, where: Any = True) -> Any:
        return fed_ucb(q, exploration, where=pooling.beside(where, q))

    return Rule(pooling.mean, pooling.std, scores)


def bernstein(bound: Any, confidence: Any) -> Rule:
    """Return the paper's theoretical rule."""

    def scores(q: Any, *, where: Any = True) -> Any:
        return fed_ucb_bernstein(q, bound, confidence, where=pooling.beside(where, q))

    return Rule(pooling.mean, pooling.std, scores)


def median_mad(exploration: Any) -> Rule:
    """Return a rule whose centre stays within the honest values if most agents are honest."""
    return upper_bound(pooling.median, pooling.mad, exploration)


def sceptical(exploration: Any) -> Rule:
    """Return `median_mad` among the agents and sceptics, whose values are 0.

    It is for tasks without negative rewards, where nothing is worth less than 0.
    """

    def among_sceptics(pool: Pool) -> Pool:
        def pooled(q: Any, *, where: Any = True) -> Any:
            among, present = pooling.with_sceptics(q, where)
            return pool(among, where=present)

        return pooled

    return upper_bound(among_sceptics(pooling.median), among_sceptics(pooling.mad), exploration)


def hampel(exploration: Any) -> Rule:
    """Return a rule that leaves out values far from the median, for each state and action."""
    return upper_bound(pooling.near_mean, pooling.near_std, exploration)


def trimmed(exploration: Any, trim: Any) -> Rule:
    """Return a rule that cuts the `trim` highest and lowest agents, for each state and action."""
    centre, spread = pooling.trimmed_mean, pooling.trimmed_std
    return upper_bound(partial(centre, trim=trim), partial(spread, trim=trim), exploration)


def bellman_weighted(exploration: Any) -> Rule:
    """Return a rule that weights agents by the Bellman error of their own values."""
    return upper_bound(pooling.weighted_mean, pooling.weighted_std, exploration)


RULES: dict[str, RuleSpec] = {
    "mean-std": RuleSpec(mean_std, from_sums=fed_ucb_of),
    "bernstein": RuleSpec(bernstein, ("bound", "confidence"), from_sums=fed_ucb_bernstein_of),
    "median-mad": RuleSpec(median_mad),
    "sceptical": RuleSpec(sceptical),
    "hampel": RuleSpec(hampel),
    "trimmed": RuleSpec(trimmed, ("exploration", "trim")),
    "bellman-weighted": RuleSpec(bellman_weighted, weighted=True),
}


def rule_spec(name: str) -> RuleSpec:
    """Return the record of a built-in rule, or of a user's "package.module:NAME"."""
    if name in RULES:
        return RULES[name]
    if not is_plugin(name):
        allowed = ", ".join(map(repr, RULES))
        raise SettingsError(f"{name!r} is wrong; allowed: {allowed}, or 'package.module:NAME'")
    spec = import_plugin("rule", name)
    if not isinstance(spec, RuleSpec):
        raise SettingsError(f"rule = {name!r} is a {type(spec).__name__}; allowed: a RuleSpec")
    return spec


def rule_named(name: str, numbers: Mapping[str, Any]) -> Rule:
    """Build a rule with the numbers it needs from `numbers`; they may be traced."""
    spec = rule_spec(name)
    own = [numbers[key] for key in spec.numbers]
    from_sums = spec.from_sums
    return replace(
        spec.build(*own),
        weighted=spec.weighted,
        scores_from_sums=None if from_sums is None else lambda group: from_sums(group, *own),
    )

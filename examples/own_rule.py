"""A federation rule of your own: mean + λ · (highest value - mean), instead of λ · deviation.

    cd examples && fedhql run cartpole-n5 --set federation.rule=own_rule:BEST_AGENT --out runs/rule

The functions take q (N agents, ...) and give (...), for NumPy arrays in the message engine and for
JAX arrays in the compiled one. `where` (N,) says which agents take part.
"""

from typing import Any

from fedhql.federation import Rule, RuleSpec, upper_bound
from fedhql.federation.pooling import beside, mean


def lead(q: Any, *, where: Any = True) -> Any:
    """Return how far the highest agent is above the mean."""
    xp = q.__array_namespace__()
    return xp.where(beside(where, q), q, -xp.inf).max(axis=0) - mean(q, where=where)


def best_agent(exploration: Any) -> Rule:
    return upper_bound(mean, lead, exploration)


BEST_AGENT = RuleSpec(best_agent, numbers=("exploration",))

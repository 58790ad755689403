"""FedUCB: how the server scores actions from all agents' values (the inter-agent rule).

The functions are pure and use only methods that NumPy and JAX arrays share.
"""

from typing import Any, TypeVar

Array = TypeVar("Array", bound=Any)  # a NumPy or JAX array; results have the same type


def fed_ucb(q: Array, exploration: Any, *, where: Any = True) -> Array:
    """Return Eq. (fed-AUCB), the practical rule: mean + λ · population deviation over agents.

    q (N, B, A) -> scores (B, A). λ may be a traced number, so its sign is not checked here.
    `where` (N, 1, 1) leaves agents out, in programs whose arrays cannot shrink.
    """
    _require_agents_states_actions(q)
    return q.mean(axis=0, where=where) + exploration * q.std(axis=0, where=where)


def fed_ucb_bernstein(q: Array, bound: Any, confidence: Any, *, where: Any = True) -> Array:
    """Return Eq. (fed-ucb), the theoretical rule: mean + sqrt(2 c V / N) + 3 b c / N.

    For i.i.d. values in [0, b] the mean is within the bonus of its expectation with
    probability at least 1 - 3 exp(-c). q (N, B, A) -> scores (B, A).
    """
    _require_agents_states_actions(q)
    N = q.shape[0] if where is True else where.sum()
    variance_BA = q.var(axis=0, where=where)
    return (
        q.mean(axis=0, where=where)
        + (2 * confidence * variance_BA / N) ** 0.5
        + 3 * bound * confidence / N
    )


def _require_agents_states_actions(q: Any) -> None:
    if q.ndim != 3 or q.shape[0] == 0:
        raise ValueError(f"q must be (N agents, B states, A actions), N >= 1; got {q.shape}")

"""FedUCB: how the server scores actions from all agents' values (the inter-agent rule).

Pure, and the same code for NumPy and JAX arrays: only methods both have are used.
"""

from typing import Any, TypeVar

Array = TypeVar("Array", bound=Any)  # a NumPy or JAX array, returned as it came


def fed_ucb(q: Array, exploration: Any, *, where: Any = True) -> Array:
    """The practical rule, Eq. (fed-AUCB): mean + λ · population standard deviation over agents.

    q (N, B, A) -> scores (B, A). λ may be a traced number, so its sign is not checked here.
    `where` (N, 1, 1) leaves agents out, in programs whose arrays cannot shrink.
    """
    _require_agents_states_actions(q)
    scores: Array = q.mean(axis=0, where=where) + exploration * q.std(axis=0, where=where)
    return scores


def fed_ucb_bernstein(q: Array, bound: Any, confidence: Any, *, where: Any = True) -> Array:
    """The theoretical rule, Eq. (fed-ucb): mean + sqrt(2 c V / N) + 3 b c / N.

    For i.i.d. values in [0, b] the mean is within the bonus of its expectation with
    probability at least 1 - 3 exp(-c). q (N, B, A) -> scores (B, A).
    """
    _require_agents_states_actions(q)
    N = q.shape[0] if where is True else where.sum()
    variance_BA = q.var(axis=0, where=where)
    scores: Array = (
        q.mean(axis=0, where=where)
        + (2 * confidence * variance_BA / N) ** 0.5
        + 3 * bound * confidence / N
    )
    return scores


def _require_agents_states_actions(q: Any) -> None:
    if q.ndim != 3 or q.shape[0] == 0:
        raise ValueError(f"q must be (N agents, B states, A actions), N >= 1; got {q.shape}")

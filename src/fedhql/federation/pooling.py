"""Pool the values of all agents: centres, the spreads about them, and the weights of agents.

The functions are pure and work on NumPy and JAX arrays. They reduce q (N, ...) over its first axis,
the agents. In programs whose arrays cannot shrink, `where` (N,) leaves agents out; the values of
those agents, even NaN, have no effect.
"""

from typing import Any, TypeVar

Array = TypeVar("Array", bound=Any)  # a NumPy or JAX array; results have the same type

MAD_TO_STD = 1.4826  # the standard deviation of a normal distribution divided by its MAD
ERROR_FLOOR = 0.1  # relative Bellman errors well below this give almost equal weights
SMALL = 1e-6
NEAR = 3.0  # times `mad` from the median; farther values are outliers (Hampel's identifier)


def mean(q: Array, *, where: Any = True) -> Array:
    return q.mean(axis=0, where=beside(where, q))


def std(q: Array, *, where: Any = True) -> Array:
    """Return the population standard deviation, which divides by N."""
    return q.std(axis=0, where=beside(where, q))


def median(q: Array, *, where: Any = True) -> Array:
    """Return the middle value, or the mean of the two middle values."""
    ranked, n = _ranked(q, where), _count(q, where)
    return 0.5 * ranked[(n - 1) // 2] + 0.5 * ranked[n // 2]


def mad(q: Array, *, where: Any = True) -> Array:
    """Return 1.4826 · the median distance from the median."""
    return MAD_TO_STD * median(abs(q - median(q, where=where)), where=where)


def trimmed_mean(q: Array, trim: Any, *, where: Any = True) -> Array:
    """Return the mean without the `agents_cut` lowest and the `agents_cut` highest values."""
    ranked, shares = _kept(q, trim, where)
    return (shares * ranked).sum(axis=0)


def trimmed_std(q: Array, trim: Any, *, where: Any = True) -> Array:
    """Return the standard deviation of the values that `trimmed_mean` averages."""
    ranked, shares = _kept(q, trim, where)
    return _deviation(ranked, shares)


def near_mean(q: Array, *, where: Any = True) -> Array:
    """Return the mean of the values within 3 · `mad` of the median; there is always one."""
    near, shares = _near_median(q, where)
    return (shares * near).sum(axis=0)


def near_std(q: Array, *, where: Any = True) -> Array:
    """Return the standard deviation of the values that `near_mean` averages."""
    return _deviation(*_near_median(q, where))


def with_sceptics(q: Array, where: Any) -> tuple[Array, Any]:
    """Return the values and `where` of the agents and of sceptics, whose values are 0.

    There is one sceptic for every five agents present, rounded, and at least one.
    """
    xp, N = q.__array_namespace__(), q.shape[0]
    most = max((N + 2) // 5, 1)
    count = xp.maximum((_count(q, where) + 2) // 5, 1)
    present_N = xp.ones(N, dtype=bool) if where is True else where
    among = xp.concatenate([q, xp.zeros((most, *q.shape[1:]), dtype=q.dtype)])
    return among, xp.concatenate([present_N, xp.arange(most) < count])


def agents_cut(trim: Any, n: Any, xp: Any) -> Any:
    """Return how many of n agents to cut at each end: `trim`, or that share of n if below 1.

    At least one agent always remains; if few agents are present, fewer are cut.
    """
    # Shares are rounded down. The 1e-4 makes 0.2 of 5 equal 1 in float32 too.
    share = xp.floor(trim * n + 1e-4)
    return xp.minimum(xp.where(trim < 1, share, trim), (n - 1) // 2)


def weighted_mean(q: Array, *, where: Any = True) -> Array:
    """Return Σ w q / Σ w. `where` holds the weights w >= 0, which may be booleans."""
    q, shares = _shared(q, where)
    return (shares * q).sum(axis=0)


def weighted_std(q: Array, *, where: Any = True) -> Array:
    """Return sqrt(Σ w (q - centre)² / Σ w)."""
    return _deviation(*_shared(q, where))


def bellman_weights(
    q_selected: Array,
    rewards: Any,
    next_q: Any,
    terminated: Any,
    *,
    discount: float,
    where: Any = True,
) -> Array:
    """Return each agent's weight 1 / (e² + 0.1²), where e is the agent's relative Bellman error.

    e = mean |r + γ (1 - terminated) max_b q(s', b) - q(s, ā)| / mean |q(s, ā)|, over transitions.
    q_selected (N, B), rewards (B,), next_q (N, B, A), terminated (B,) -> (N,). `where` (B,) says
    which transitions exist. An agent whose error is not finite has weight 0.
    """
    xp = q_selected.__array_namespace__()
    best_next = next_q.max(axis=2)
    future = xp.where(terminated != 0, xp.zeros_like(best_next), best_next)
    missed = abs(rewards + discount * future - q_selected).mean(axis=1, where=where)
    error = missed / (abs(q_selected).mean(axis=1, where=where) + SMALL)
    return xp.where(error < xp.inf, 1 / (error**2 + ERROR_FLOOR**2), 0)


def weights_among(weights: Array, usable: Array) -> Array:
    """Return the weights (N,) of usable agents (N,), or equal weights if all of these are 0."""
    xp = weights.__array_namespace__()
    theirs = xp.where(usable, weights, 0)
    return xp.where(theirs.sum() > 0, theirs, usable)


def beside(where: Any, q: Any) -> Any:
    """Reshape `where` (N,) so that it broadcasts with q (N, ...)."""
    return where if where is True else where.reshape(-1, *(1,) * (q.ndim - 1))


def _count(q: Any, where: Any) -> Any:
    return q.shape[0] if where is True else where.sum()


def _ranked(q: Array, where: Any) -> Array:
    """Sort the values from the lowest to the highest; agents left out come last, as infinity."""
    xp = q.__array_namespace__()
    return xp.sort(xp.where(beside(where, q), q, xp.inf), axis=0)


def _kept(q: Array, trim: Any, where: Any) -> tuple[Array, Any]:
    """Return the sorted values, 0 where cut, and the share of each in the mean."""
    xp, n = q.__array_namespace__(), _count(q, where)
    cut, rank = agents_cut(trim, n, xp), beside(xp.arange(q.shape[0]), q)
    kept = (rank >= cut) & (rank < n - cut)
    return xp.where(kept, _ranked(q, where), 0), kept / (n - 2 * cut)


def _near_median(q: Array, where: Any) -> tuple[Array, Any]:
    """Return the values, 0 for outliers, and the share of each in the mean."""
    xp = q.__array_namespace__()
    away = xp.where(beside(where, q), abs(q - median(q, where=where)), xp.inf)
    # The nearest value always stays: half of the smallest float is 0, which moves the median.
    kept = away <= xp.maximum(NEAR * mad(q, where=where), away.min(axis=0))
    return xp.where(kept, q, 0), kept / kept.sum(axis=0)


def _shared(q: Array, weights: Any) -> tuple[Array, Any]:
    """Return the values, 0 where the weight is 0, and the share of each in the mean."""
    xp = q.__array_namespace__()
    weights = beside(xp.ones(q.shape[0]) if weights is True else weights, q)
    return xp.where(weights > 0, q, 0), weights / weights.sum()


def _deviation(q: Array, shares: Any) -> Array:
    """Return the deviation about the mean with these shares.

    Distances are divided by the largest one before squaring, because float32 squares overflow.
    """
    xp = q.__array_namespace__()
    away = xp.where(shares > 0, q - (shares * q).sum(axis=0), 0)
    largest = abs(away).max(axis=0)
    unit = xp.where(largest > 0, largest, 1)
    return largest * (shares * (away / unit) ** 2).sum(axis=0) ** 0.5

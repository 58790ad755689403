"""One value out of all agents': centres, the spreads about them, and how much an agent counts.

Pure, and the same code for NumPy and JAX arrays. Agents are the first axis of q (N, ...), and what
comes back has the axes behind it. `where` (N,) leaves agents out, in programs whose arrays cannot
shrink; whatever their values are, they change nothing.
"""

from typing import Any, TypeVar

Array = TypeVar("Array", bound=Any)  # a NumPy or JAX array, returned as it came

MAD_TO_STD = 1.4826  # a normal distribution's standard deviation over its MAD
ERROR_FLOOR = 0.1  # relative Bellman errors well below it count alike
SMALL = 1e-6
NEAR = 3.0  # of the spread about the median: Hampel's identifier of outliers


def mean(q: Array, *, where: Any = True) -> Array:
    centre: Array = q.mean(axis=0, where=beside(where, q))
    return centre


def std(q: Array, *, where: Any = True) -> Array:
    """Of the population: divided by N."""
    spread: Array = q.std(axis=0, where=beside(where, q))
    return spread


def median(q: Array, *, where: Any = True) -> Array:
    """The middle value; of an even number, the mean of the two in the middle."""
    ranked, n = _ranked(q, where), _count(q, where)
    centre: Array = 0.5 * ranked[(n - 1) // 2] + 0.5 * ranked[n // 2]
    return centre


def mad(q: Array, *, where: Any = True) -> Array:
    """1.4826 · the median distance from the median."""
    spread: Array = MAD_TO_STD * median(abs(q - median(q, where=where)), where=where)
    return spread


def trimmed_mean(q: Array, trim: Any, *, where: Any = True) -> Array:
    """Of the values that are left when each end has lost `agents_cut`."""
    ranked, shares = _kept(q, trim, where)
    centre: Array = (shares * ranked).sum(axis=0)
    return centre


def trimmed_std(q: Array, trim: Any, *, where: Any = True) -> Array:
    """Of the same values, about their mean."""
    ranked, shares = _kept(q, trim, where)
    return _deviation(ranked, shares)


def near_mean(q: Array, *, where: Any = True) -> Array:
    """Of the values within 3 spreads of the median; there is always one."""
    near, shares = _near_median(q, where)
    centre: Array = (shares * near).sum(axis=0)
    return centre


def near_std(q: Array, *, where: Any = True) -> Array:
    """Of the same values, about their mean."""
    return _deviation(*_near_median(q, where))


def agents_cut(trim: Any, n: Any, xp: Any) -> Any:
    """How many of n agents each end loses: `trim` of them, or that share if it is below 1.

    At least one is left: when so many are away that it could not be, fewer are cut.
    """
    # Rounded down, but 0.2 of 5 is 1, also where 0.2 is a float32.
    share = xp.floor(trim * n + 1e-4)
    return xp.minimum(xp.where(trim < 1, share, trim), (n - 1) // 2)


def weighted_mean(q: Array, *, where: Any = True) -> Array:
    """Σ w q / Σ w, with `where` the weights w >= 0; truth values are weights too."""
    q, shares = _shared(q, where)
    centre: Array = (shares * q).sum(axis=0)
    return centre


def weighted_std(q: Array, *, where: Any = True) -> Array:
    """sqrt(Σ w (q - centre)² / Σ w)"""
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
    """How far each agent's own values keep what they promise, as a weight: 1 / (e² + 0.1²).

    e = mean |r + γ (1 - terminated) max_b q(s', b) - q(s, ā)| / mean |q(s, ā)|, over transitions.
    q_selected (N, B), rewards (B,), next_q (N, B, A), terminated (B,) -> (N,); `where` (B,) says
    which transitions there are. Whoever's error is no number has no weight.
    """
    xp = q_selected.__array_namespace__()
    best_next = next_q.max(axis=2)
    future = xp.where(terminated != 0, xp.zeros_like(best_next), best_next)
    missed = abs(rewards + discount * future - q_selected).mean(axis=1, where=where)
    error = missed / (abs(q_selected).mean(axis=1, where=where) + SMALL)
    weights: Array = xp.where(error < xp.inf, 1 / (error**2 + ERROR_FLOOR**2), 0)
    return weights


def weights_among(weights: Array, usable: Array) -> Array:
    """The weights (N,) of those that are usable (N,); equal ones if none of these has any."""
    xp = weights.__array_namespace__()
    theirs = xp.where(usable, weights, 0)
    among: Array = xp.where(theirs.sum() > 0, theirs, usable)
    return among


def beside(where: Any, q: Any) -> Any:
    """(N,) so that it broadcasts with q (N, ...)."""
    return where if where is True else where.reshape(-1, *(1,) * (q.ndim - 1))


def _count(q: Any, where: Any) -> Any:
    return q.shape[0] if where is True else where.sum()


def _ranked(q: Array, where: Any) -> Array:
    """From the lowest to the highest, with whoever is left out behind them."""
    xp = q.__array_namespace__()
    ranked: Array = xp.sort(xp.where(beside(where, q), q, xp.inf), axis=0)
    return ranked


def _kept(q: Array, trim: Any, where: Any) -> tuple[Array, Any]:
    """Ranked values, 0 for those cut, and the share each has of their mean."""
    xp, n = q.__array_namespace__(), _count(q, where)
    cut, rank = agents_cut(trim, n, xp), beside(xp.arange(q.shape[0]), q)
    kept = (rank >= cut) & (rank < n - cut)
    return xp.where(kept, _ranked(q, where), 0), kept / (n - 2 * cut)


def _near_median(q: Array, where: Any) -> tuple[Array, Any]:
    """Values, 0 for outliers, and the share each has of their mean."""
    xp = q.__array_namespace__()
    away = xp.where(beside(where, q), abs(q - median(q, where=where)), xp.inf)
    # The nearest stay in any case: halves of the smallest numbers there are get lost.
    kept = away <= xp.maximum(NEAR * mad(q, where=where), away.min(axis=0))
    return xp.where(kept, q, 0), kept / kept.sum(axis=0)


def _shared(q: Array, weights: Any) -> tuple[Array, Any]:
    """Values, 0 for those without weight, and the share each has of their mean."""
    xp = q.__array_namespace__()
    weights = beside(xp.ones(q.shape[0]) if weights is True else weights, q)
    return xp.where(weights > 0, q, 0), weights / weights.sum()


def _deviation(q: Array, shares: Any) -> Array:
    """About the mean by these shares; squared in units of the largest, which float32 can hold."""
    xp = q.__array_namespace__()
    away = xp.where(shares > 0, q - (shares * q).sum(axis=0), 0)
    largest = abs(away).max(axis=0)
    unit = xp.where(largest > 0, largest, 1)
    spread: Array = largest * (shares * (away / unit) ** 2).sum(axis=0) ** 0.5
    return spread

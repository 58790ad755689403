"""FedTD: the federated temporal-difference targets, as pure functions of NumPy or JAX arrays."""

from typing import Any, TypeVar

Array = TypeVar("Array", bound=Any)  # a NumPy or JAX array; results have the same type


def fed_td(
    q_selected: Array,
    rewards: Array,
    next_q_mean: Array,
    terminated: Array,
    *,
    learning_rate: Any,
    discount: float,
) -> Array:
    """Return Eq. (fed-TD): q̄ + α_s (r + γ max_b q̄'(s', b) - q̄); no future if `terminated`.

    The arguments are those of `td_error` -> targets (B,).
    """
    error = td_error(q_selected, rewards, next_q_mean, terminated, discount=discount)
    return q_selected + learning_rate * error


def td_error(
    q_selected: Array, rewards: Array, next_q_mean: Array, terminated: Array, *, discount: float
) -> Array:
    """Return r + γ max_b q̄'(s', b) - q̄; no future if `terminated`.

    q_selected (B,) is q̄(s, ā), next_q_mean (B, A) is q̄ at the next states -> (B,).
    Mask on terminated only: a truncated episode still has a future. The mask is a `where`, so that
    NaN or infinity at a terminal state cannot enter the target.
    """
    B = q_selected.shape[0] if q_selected.ndim else -1
    shapes = (q_selected.shape, rewards.shape, terminated.shape)
    if shapes != ((B,),) * 3 or next_q_mean.ndim != 2 or next_q_mean.shape[0] != B:
        raise ValueError(
            "FedTD takes q_selected (B,), rewards (B,), next_q_mean (B, A), terminated (B,); got "
            f"{q_selected.shape}, {rewards.shape}, {next_q_mean.shape}, {terminated.shape}"
        )
    xp = q_selected.__array_namespace__()
    best_next = next_q_mean.max(axis=1)
    future = xp.where(terminated != 0, xp.zeros_like(best_next), best_next)
    return rewards + discount * future - q_selected


def all_action_targets(others: Array, actions: Array, targets: Array) -> Array:
    """Return targets for every action: FedTD's for the chosen one, `others` for the others.

    others (B, A), actions (B,), targets (B,) -> (B, A).
    """
    xp = others.__array_namespace__()
    chosen = actions[:, None] == xp.arange(others.shape[1])
    return xp.where(chosen, targets[:, None], others)

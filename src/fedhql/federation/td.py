"""FedTD: the federated temporal-difference targets. Pure, for NumPy and JAX arrays alike."""

from typing import Any, TypeVar

Array = TypeVar("Array", bound=Any)  # a NumPy or JAX array, returned as it came


def fed_td(
    q_selected: Array,
    rewards: Array,
    next_q_mean: Array,
    terminated: Array,
    *,
    learning_rate: Any,
    discount: float,
) -> Array:
    """Eq. (fed-TD): q̄ + α_s (r + γ max_b q̄'(s', b) - q̄), with no future after `terminated`.

    q_selected (B,) is q̄(s, ā), next_q_mean (B, A) is q̄ at the next states -> targets (B,).
    Mask on terminated only: a truncated episode still has a future. The mask is a `where`, so
    that what agents answer at a terminal state, however wild, cannot enter the target.
    """
    B = q_selected.shape[0] if q_selected.ndim else -1
    shapes = (q_selected.shape, rewards.shape, terminated.shape)
    if shapes != ((B,),) * 3 or next_q_mean.ndim != 2 or next_q_mean.shape[0] != B:
        raise ValueError(
            "fed_td takes q_selected (B,), rewards (B,), next_q_mean (B, A), terminated (B,); got "
            f"{q_selected.shape}, {rewards.shape}, {next_q_mean.shape}, {terminated.shape}"
        )
    xp = q_selected.__array_namespace__()
    best_next = next_q_mean.max(axis=1)
    future = xp.where(terminated != 0, xp.zeros_like(best_next), best_next)
    targets: Array = q_selected + learning_rate * (rewards + discount * future - q_selected)
    return targets


def all_action_targets(centre: Array, actions: Array, targets: Array) -> Array:
    """Targets for every action: q̄(s, a), but FedTD's where a was chosen.

    centre (B, A), actions (B,), targets (B,) -> (B, A).
    """
    xp = centre.__array_namespace__()
    chosen = actions[:, None] == xp.arange(centre.shape[1])
    every: Array = xp.where(chosen, targets[:, None], centre)
    return every

"""One server step of Algorithm 1.a on arrays: the action, the targets, the weights, the figures.

Both engines call these functions, the message engine with NumPy arrays and the compiled engine with
traced ones. The engines themselves query agents, step environments and mask rows.
Shape letters: N agents, B states, A actions, R broadcast rows.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedhql.federation.pooling import bellman_weights
from fedhql.federation.reading import Reading, at_actions
from fedhql.federation.td import all_action_targets, fed_td, td_error

Array = Any  # a NumPy or JAX array
# A prime length, so that any stride visits every entry.
RANDOM_NUMBERS = np.random.default_rng(0).integers(2**16, size=4099)


class StepTargets(NamedTuple):
    """What one step broadcasts, and its figures at each state."""

    targets: Array  # float32: (B,) for the chosen actions, or (B, A) for all
    spread: Array  # (B,) the rule's, over agents, at the chosen actions
    td_error: Array  # (B,) |r + γ max q̄' - q̄|; of a pessimistic server, with its lower bound of q̄'
    loss: Array  # (B,) the agents' squared error to the targets, before they improve


def choose(scores_BA: Array) -> Array:
    """Return the action with the highest score at each state: (B,). Ties: the lowest index."""
    return scores_BA.argmax(axis=1)


def action_draws(seeds: Sequence[int], H: int, B: int) -> NDArray[np.uint32]:
    """Return the draws of a round for `explore`, (H, B), from the seeds of its environments."""
    own = np.random.SeedSequence(int(seeds[0]), spawn_key=(1,))  # apart from `replay_draws`
    return np.random.default_rng(own).integers(2**32, size=(H, B), dtype=np.uint32)


def random_probability(first: Any, until: Any, own_env_steps: Any) -> Any:
    """Return the probability of random actions in a round, as float32; arguments may be arrays.

    It falls linearly from `first` at 0 env steps to 0 at `until`. If `until` is 0, it is constant.
    """
    until = np.asarray(until, dtype=np.float32)  # as in compiled arms, so that both are equal
    left = np.maximum(1 - np.asarray(own_env_steps) / np.maximum(until, 1), 0)
    return np.float32(first) * np.where(until > 0, left, 1).astype(np.float32)


def explore(actions: Array, draws: Array, probability: Any, A: int) -> Array:
    """Return the actions, each with this probability replaced by a random one of A.

    The upper 24 bits of a draw decide whether the action is random; float32 holds them exactly. The
    draw modulo A is the random action.
    """
    xp = draws.__array_namespace__()
    is_random = (draws >> 8).astype(xp.float32) < xp.float32(2**24) * probability
    return xp.where(is_random, (draws % A).astype(actions.dtype), actions)


def step_targets(
    now: Reading,
    next_values_BA: Array,
    actions: Array,
    rewards: Array,
    terminated: Array,
    *,
    learning_rate: Any,
    discount: float,
    all_actions: bool,
) -> StepTargets:
    """Form the FedTD targets of one step.

    `next_values_BA` is the centre at the next states, or a lower bound of a pessimistic server;
    rows that terminated may hold anything.
    """
    q_selected_B, spread_B = now.chosen(actions)
    transitions = q_selected_B, rewards, next_values_BA, terminated
    exact_B = fed_td(*transitions, learning_rate=learning_rate, discount=discount)
    error_B = abs(td_error(*transitions, discount=discount))
    xp = exact_B.__array_namespace__()
    targets = exact_B.astype(xp.float32)
    if all_actions:
        targets = all_action_targets(now.centre(), actions, targets).astype(xp.float32)
    loss_B = now.loss(targets) if all_actions else now.loss(targets, actions)
    return StepTargets(targets, spread_B, error_B, loss_B)


def public_actions(rows_B: Array, number: Any, A: int) -> Array:
    """Return the actions that lead to the public states: random, and the same in every round.

    The row of the environment and the number of the server step determine an action.
    """
    xp = rows_B.__array_namespace__()
    return xp.asarray(RANDOM_NUMBERS)[(2027 * rows_B + 1741 * number) % len(RANDOM_NUMBERS)] % A


def step_weights(
    q_NBA: Array,
    actions: Array,
    rewards: Array,
    next_q_NBA: Array,
    terminated: Array,
    *,
    discount: float,
    running_B: Array | bool = True,
) -> Array:
    """Return each agent's weight in a weighted rule after this step: (N,).

    `running_B` says which transitions exist, in programs whose arrays cannot shrink.
    """
    return bellman_weights(
        at_actions(q_NBA, actions),
        rewards,
        next_q_NBA,
        terminated,
        discount=discount,
        where=running_B,
    )


def broadcast_rows(states: Array, targets_BA: Array) -> tuple[Array, Array, Array]:
    """Return states, actions and targets of R = B · A rows: each state with actions 0 to A - 1."""
    xp, (B, A) = targets_BA.__array_namespace__(), targets_BA.shape
    return xp.repeat(states, A, axis=0), xp.tile(xp.arange(A), B), targets_BA.ravel()

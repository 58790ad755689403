"""Attacks on the server: what an attacking agent answers instead of its true values.

Experiments use them to measure which attacks a rule withstands. The functions are pure and work on
NumPy and JAX arrays. An attack may use the answers of the honest agents in the same exchange.
Attackers change only their answers to the server's queries.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedhql.federation.pooling import beside, weighted_mean, weighted_std, weights_among

Array = TypeVar("Array", bound=Any)  # a NumPy or JAX array; results have the same type

HUGE = 1e6  # larger than any honest value; its square is still finite in float32
NOISE_SPREADS = 10
# In standard deviations of the honest answers; some honest agent is always at least this far from
# their mean. The formula of "A Little Is Enough" assumes many workers: for one or two attackers
# among 5 or 10 agents it gives at most 0.43.
STEALTHY_SPREADS = 1
PUSHED_ACTION = 0
NORMALS = np.random.default_rng(0).standard_normal(
    4099
)  # a prime length, so that any stride visits every entry


class Seen(NamedTuple):
    """What the attackers know in one exchange."""

    own_NBA: Any  # the honest answer of each agent
    centre_BA: Any  # the mean of the honest answers
    spread_BA: Any  # their population standard deviation
    lowest_B1: Any  # the lowest honest answer at a state, over all actions
    highest_B1: Any
    normals_NBA: Any


def not_a_number(seen: Seen) -> Any:
    return np.nan


def huge(seen: Seen) -> Any:
    """Answer the same huge value everywhere."""
    return HUGE


def sign_flip(seen: Seen) -> Any:
    return -seen.own_NBA


def noise(seen: Seen) -> Any:
    """Return the own answer + 10 · honest deviation · a standard normal number."""
    return seen.own_NBA + NOISE_SPREADS * seen.spread_BA * seen.normals_NBA


def collude(seen: Seen) -> Any:
    """Promote one action: the state's highest honest value there, its lowest for the others."""
    xp = seen.centre_BA.__array_namespace__()
    pushed_A = xp.arange(seen.centre_BA.shape[1]) == PUSHED_ACTION
    return xp.where(pushed_A, seen.highest_B1, seen.lowest_B1)


def stealthy(seen: Seen) -> Any:
    """Return the honest mean, 1 deviation lower where an action is above average, else higher."""
    xp, centre_BA = seen.centre_BA.__array_namespace__(), seen.centre_BA
    better_BA = xp.sign(centre_BA - centre_BA.mean(axis=1, keepdims=True))
    return centre_BA - STEALTHY_SPREADS * better_BA * seen.spread_BA


@dataclass(frozen=True)
class AttackSpec:
    """The record of one attack."""

    answer: Callable[[Seen], Any]  # what attackers answer; broadcasts to (N, B, A)
    # An attack by the spread of the honest answers has no effect if only one agent is honest.
    honest_agents_needed: int = 1


ATTACKS: dict[str, AttackSpec] = {
    "nan": AttackSpec(not_a_number),
    "huge": AttackSpec(huge),
    "sign-flip": AttackSpec(sign_flip),
    "noise": AttackSpec(noise, honest_agents_needed=2),
    "collude": AttackSpec(collude),
    "stealthy": AttackSpec(stealthy, honest_agents_needed=2),
}


def attack_number(name: str | None) -> int:
    """Return the number by which `attacked` identifies an attack; for no attack, 0."""
    return 0 if name is None else list(ATTACKS).index(name)


def attacked(
    q: Array,
    attack: Any,
    attackers: Any,
    exchange: Any,
    *,
    usable: Any = True,
    asked: Any = True,
) -> Array:
    """Return the answers (N, B, A) with those of the last `attackers` agents replaced.

    `attack` is the number of an attack. It and `attackers` may be traced, so that lanes of one
    program can differ in them. `exchange` counts the queries of a round. Where arrays cannot
    shrink, `usable` (N,) marks agents whose answers are all finite, and `asked` (B,) marks the
    states that were queried.
    """
    xp, N = q.__array_namespace__(), q.shape[0]
    lying_N = xp.arange(N) >= N - attackers
    honest_N = xp.where(usable, ~lying_N, False)
    honest_N = weights_among(honest_N * xp.ones(N), xp.ones(N))
    heard = beside(honest_N, q) > 0
    seen = Seen(
        own_NBA=q,
        centre_BA=weighted_mean(q, where=honest_N),
        spread_BA=weighted_std(q, where=honest_N),
        lowest_B1=xp.where(heard, q, xp.inf).min(axis=(0, 2))[:, None],
        highest_B1=xp.where(heard, q, -xp.inf).max(axis=(0, 2))[:, None],
        normals_NBA=normals(q, exchange, asked),
    )
    lies = xp.stack([xp.broadcast_to(spec.answer(seen), q.shape) for spec in ATTACKS.values()])
    return xp.where(beside(lying_N, q), lies[attack], q)


def normals(q: Array, exchange: Any, asked: Any = True) -> Array:
    """Return standard normal numbers from a fixed table, in the shape of q (N, B, A).

    The agent, the position of the state among those asked, the action and the exchange determine
    the table entry. Rounding changes none of these, so both engines draw the same numbers.
    Checkpoints are made between rounds and need not store them. Every round draws the same numbers
    for its own states.
    """
    xp = q.__array_namespace__()
    N, B, A = q.shape
    row_B = xp.cumsum(asked * xp.ones(B, dtype=int)) - 1
    agent_N11, row_B1 = xp.arange(N)[:, None, None], row_B[:, None]
    index = 1009 * agent_N11 + 2027 * row_B1 + 3203 * xp.arange(A) + 1741 * exchange
    return xp.asarray(NORMALS, dtype=q.dtype)[index % len(NORMALS)]

"""Agents that lie to the server: what each attack answers instead of the truth.

To measure what a rule withstands, not to be used against anybody. Pure, and the same code for NumPy
and JAX arrays. Attackers are omniscient: where an attack needs it, they see what the honest agents
answer in the same exchange. They lie in answers to the server's queries only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedhql.federation.pooling import beside, weighted_mean, weighted_std, weights_among

Array = TypeVar("Array", bound=Any)  # a NumPy or JAX array, returned as it came

HUGE = 1e6  # beyond any value, but finite, also its square in float32
NOISE_SPREADS = 10
# Of the honest deviations: some honest agent is always at least so far from their mean. The formula
# of "a little is enough" is for many workers: of 5 or 10, one or two attackers get 0.43 at most.
STEALTHY_SPREADS = 1
PUSHED_ACTION = 0
NORMALS = np.random.default_rng(0).standard_normal(4099)  # a prime, so that any stride visits all


class Seen(NamedTuple):
    """What attackers know in one exchange."""

    own_NBA: Any  # what each would say honestly
    centre_BA: Any  # mean of the honest answers
    spread_BA: Any  # their standard deviation, dividing by their number
    lowest_B1: Any  # honest answer at a state, of any action
    highest_B1: Any
    normals_NBA: Any


def not_a_number(seen: Seen) -> Any:
    return np.nan


def huge(seen: Seen) -> Any:
    """The same everywhere."""
    return HUGE


def sign_flip(seen: Seen) -> Any:
    return -seen.own_NBA


def noise(seen: Seen) -> Any:
    """Own answer + 10 · honest deviation · a standard normal number."""
    return seen.own_NBA + NOISE_SPREADS * seen.spread_BA * seen.normals_NBA


def collude(seen: Seen) -> Any:
    """All for one action: the highest honest value of the state there, the lowest elsewhere."""
    xp = seen.centre_BA.__array_namespace__()
    pushed_A = xp.arange(seen.centre_BA.shape[1]) == PUSHED_ACTION
    return xp.where(pushed_A, seen.highest_B1, seen.lowest_B1)


def stealthy(seen: Seen) -> Any:
    """Honest mean - 1 deviation for actions above the state's average, + 1 for those below it."""
    xp, centre_BA = seen.centre_BA.__array_namespace__(), seen.centre_BA
    better_BA = xp.sign(centre_BA - centre_BA.mean(axis=1, keepdims=True))
    return centre_BA - STEALTHY_SPREADS * better_BA * seen.spread_BA


@dataclass(frozen=True)
class AttackSpec:
    """The record of one attack."""

    answer: Callable[[Seen], Any]  # what attackers say: broadcasts to (N, B, A)
    # A single honest agent has no spread, so that such an attack on it would be none.
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
    """Return the number by which `attacked` knows an attack; any number serves for no attack."""
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
    """All answers (N, B, A), those of the last `attackers` agents replaced.

    `attack`, by number, and `attackers` may be traced, so that lanes of one program differ in them.
    `exchange` counts the queries of a round. `usable` (N,) says whose answers are all numbers, and
    `asked` (B,) which states there are, in programs whose arrays cannot shrink.
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
    answers: Array = xp.where(beside(lying_N, q), lies[attack], q)
    return answers


def normals(q: Array, exchange: Any, asked: Any = True) -> Array:
    """Standard normal numbers in the shape of q (N, B, A), out of a fixed table.

    Which one depends on the agent, the place of the state among those asked, the action and the
    exchange: nothing that is lost in a checkpoint, since these are between rounds, and nothing that
    rounding changes, so that both engines draw the same. Every round draws the same; its states are
    others.
    """
    xp = q.__array_namespace__()
    N, B, A = q.shape
    row_B = xp.cumsum(asked * xp.ones(B, dtype=int)) - 1
    agent_N11, row_B1 = xp.arange(N)[:, None, None], row_B[:, None]
    place = 1009 * agent_N11 + 2027 * row_B1 + 3203 * xp.arange(A) + 1741 * exchange
    drawn: Array = xp.asarray(NORMALS, dtype=q.dtype)[place % len(NORMALS)]
    return drawn

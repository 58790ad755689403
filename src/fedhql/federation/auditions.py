"""Auditions: in some of the server's environments single agents act, and those that earn less than
the median agent are not heard.

An agent whose lies change its best actions acts badly by them. Lies that keep the best action, or
that concern next states only, are not detected. What an agent earns is the mean reward of a step of
its environments, 0 for those whose episode has ended. The functions serve NumPy and JAX arrays.
Shape letters: N agents, B environments, A actions.
"""

from typing import Any

Array = Any  # a NumPy or JAX array

EARNINGS_RATE = 0.01  # of a moving average, whose time constant is 100 steps


def auditioning(rows_B: Array, auditions: Any, N: int) -> Array:
    """Return which agent acts in which environment: (N, B). `rows_B` are the environments' rows.

    In the first N · `auditions` rows, the agents take turns.
    """
    xp = rows_B.__array_namespace__()
    return (rows_B % N == xp.arange(N)[:, None]) & (rows_B < auditions * N)


def act_alone(actions_B: Array, q_NBA: Array, usable_N: Array, acts_NB: Array) -> Array:
    """Return the actions, with an agent's own best ones where it acts, if its answer is usable."""
    xp = actions_B.__array_namespace__()
    acts_NB = acts_NB & usable_N[:, None]
    own_B = (acts_NB * q_NBA.argmax(axis=2)).sum(axis=0)
    return xp.where(acts_NB.any(axis=0), own_B, actions_B).astype(actions_B.dtype)


def earnings_after(
    earnings_N: Array, rewards_B: Array, usable_N: Array, acts_NB: Array, auditions: Any
) -> Array:
    """Return what agents have earned after a step, as float32; unusable ones keep theirs.

    `acts_NB` is False for environments that do not run.
    """
    xp = rewards_B.__array_namespace__()
    earned_NB = xp.where(acts_NB, rewards_B, 0)
    earned_N = earned_NB.sum(axis=1) / xp.maximum(xp.asarray(auditions), 1)
    after_N = earnings_N + EARNINGS_RATE * (earned_N - earnings_N)
    return xp.where(usable_N, after_N, earnings_N).astype(xp.float32)


def heard(earnings_N: Array, usable_N: Array, judged_N: Array | None = None) -> Array:
    """Return (N,) which usable agents have earned at least as much as the median one of these.

    With an even number it is the lower of the two in the middle, so most agents are heard. Of the
    usable agents, only those in `judged_N` are, if there are any.
    """
    xp = earnings_N.__array_namespace__()
    if judged_N is not None:
        usable_N = xp.where((usable_N & judged_N).any(), usable_N & judged_N, usable_N)
    ranked_N = xp.sort(xp.where(usable_N, earnings_N, -xp.inf))[::-1]
    return usable_N & (earnings_N >= ranked_N[usable_N.sum() // 2])

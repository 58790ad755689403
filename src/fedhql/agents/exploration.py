"""Intra-agent exploration rules for agents in NumPy. The caller passes the random generator."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedhql.errors import AgentRefused

Floats = NDArray[np.floating]
NEVER = 2**31 - 1  # more env steps than any agent takes; compiled programs count in int32


def epsilon_greedy(
    q_A: Floats, epsilon: float, rng: np.random.Generator, *, random_ties: bool = False
) -> int:
    """Return a uniform action with probability ε, else a greedy one.

    Ties go to the lowest index, as in compiled programs. `random_ties` breaks them at random, for
    tables, whose initial values are all equal.
    """
    if rng.random() < epsilon:
        return int(rng.integers(len(q_A)))
    if random_ties:
        (best,) = (q_A == q_A.max()).nonzero()
        if len(best) > 1:  # `best` is empty if a value is NaN
            return int(rng.choice(best))
    return int(q_A.argmax())


def boltzmann(q_A: Floats, temperature: float, rng: np.random.Generator) -> int:
    """Draw an action with probability proportional to exp(q / temperature)."""
    if not np.isfinite(q_A).all():  # a diverged agent still has to act
        return int(q_A.argmax())
    weights = np.exp((q_A - q_A.max()) / temperature)
    return int(rng.choice(len(q_A), p=weights / weights.sum()))


def count_ucb(q_A: Floats, counts_A: NDArray[np.int64], confidence: float) -> int:
    """Return the argmax of q + c sqrt(log t / n(a)), t = Σ n(a); untried actions come first."""
    if (counts_A == 0).any():
        return int(counts_A.argmin())
    bonus = confidence * np.sqrt(np.log(counts_A.sum()) / counts_A)
    return int((q_A + bonus).argmax())


class Annealing(NamedTuple):
    """The time that ε takes to fall, and the time after which it starts again."""

    env_steps: float
    period: int  # env steps


def annealing_of(
    over: str, fraction: float, budget_env_steps: int, phase_env_steps: int | None
) -> Annealing:
    """Return the annealing over a fraction of the budget, or of each self-learning phase.

    Raise AgentRefused if it is over phases and their length is not known.
    """
    if over == "budget":
        return Annealing(fraction * budget_env_steps, NEVER)
    if phase_env_steps is None:
        raise AgentRefused(
            f"exploration_annealing = {over!r} needs the length of a self-learning phase, which is "
            "not known here; allowed: 'budget'"
        )
    return Annealing(fraction * phase_env_steps, phase_env_steps)


def annealed_epsilon(final: float, initial: float, annealing: Annealing, env_step: int) -> float:
    """Return ε, which falls linearly from `initial` to `final` in each period.

    If it falls over 0 env steps, it is always `final`.
    """
    env_step %= annealing.period
    if env_step >= annealing.env_steps:
        return final
    return initial + (final - initial) * env_step / annealing.env_steps

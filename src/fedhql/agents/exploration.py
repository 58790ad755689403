"""Intra-agent exploration rules for agents in NumPy. The caller passes the random generator."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


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


def annealed_epsilon(final: float, initial: float, anneal_env_steps: float, env_step: int) -> float:
    """Return ε, which falls linearly from `initial` to `final` over `anneal_env_steps`.

    With 0 such steps it is always `final`.
    """
    if env_step >= anneal_env_steps:
        return final
    return initial + (final - initial) * env_step / anneal_env_steps

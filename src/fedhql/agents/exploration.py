"""Intra-agent exploration rules for agents of our own: pure, randomness passed in."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


def epsilon_greedy(
    q_A: Floats, epsilon: float, rng: np.random.Generator, *, random_ties: bool = False
) -> int:
    """Return a uniform action with probability ε, else a greedy one.

    Ties: the lowest index, as in compiled programs; or at random, for tables, whose values start
    out equal.
    """
    if rng.random() < epsilon:
        return int(rng.integers(len(q_A)))
    if random_ties:
        (best,) = (q_A == q_A.max()).nonzero()
        if len(best) > 1:  # nothing equals a NaN
            return int(rng.choice(best))
    return int(q_A.argmax())


def boltzmann(q_A: Floats, temperature: float, rng: np.random.Generator) -> int:
    """An action with probability proportional to exp(q / temperature)."""
    if not np.isfinite(q_A).all():  # an agent that has diverged still has to act
        return int(q_A.argmax())
    weights = np.exp((q_A - q_A.max()) / temperature)
    return int(rng.choice(len(q_A), p=weights / weights.sum()))


def count_ucb(q_A: Floats, counts_A: NDArray[np.int64], confidence: float) -> int:
    """argmax of q + c sqrt(log t / n(a)), t = Σ n(a); an untried action comes first."""
    if (counts_A == 0).any():
        return int(counts_A.argmin())
    bonus = confidence * np.sqrt(np.log(counts_A.sum()) / counts_A)
    return int((q_A + bonus).argmax())


def annealed_epsilon(final: float, initial: float, anneal_env_steps: float, env_step: int) -> float:
    """From `initial` to `final` linearly over `anneal_env_steps`; 0 of them: constant."""
    if env_step >= anneal_env_steps:
        return final
    return initial + (final - initial) * env_step / anneal_env_steps

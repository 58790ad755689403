"""Exploration rules for one lane of a compiled program. The caller passes uniform draws.

`fedhql.agents.exploration` has the same rules in NumPy.
"""

import jax
import jax.numpy as jnp

from fedhql.agents.dqn.numbers import Numbers

Array = jax.Array

VISIT_CODE_BITS = 8


def uniform(action_count: int, draw: Array) -> Array:
    return (draw * action_count).astype(jnp.int32)


def epsilon_greedy(q_A: Array, epsilon: Array, draws_2: Array) -> Array:
    greedy = q_A.argmax().astype(jnp.int32)
    return jnp.where(draws_2[0] < epsilon, uniform(len(q_A), draws_2[1]), greedy)


def boltzmann(q_A: Array, temperature: Array, draw: Array) -> Array:
    """Draw an action with probability proportional to exp(q / temperature)."""
    below_A = jnp.cumsum(jax.nn.softmax(q_A / temperature)) <= draw
    return jnp.minimum(below_A.sum(), len(q_A) - 1).astype(jnp.int32)


def count_ucb(q_A: Array, counts_A: Array, confidence: Array) -> Array:
    """Return the argmax of q + c sqrt(log t / n(a)), t = Σ n(a); untried actions come first."""
    bonus_A = confidence * jnp.sqrt(jnp.log(counts_A.sum()) / counts_A)
    scores_A = jnp.where(counts_A == 0, jnp.inf, q_A + bonus_A)
    return scores_A.argmax().astype(jnp.int32)


def annealed_epsilon(numbers: Numbers, env_step: Array) -> Array:
    """Return ε, which falls linearly from its initial to its final value in each period.

    If it falls over 0 env steps, it always has its final value.
    """
    final, initial = numbers.exploration_final_eps, numbers.exploration_initial_eps
    within = env_step % numbers.anneal_period
    share = jnp.minimum(within / jnp.maximum(numbers.anneal_env_steps, 1), 1)
    epsilon = initial + (final - initial) * share
    return jnp.where(within >= numbers.anneal_env_steps, final, epsilon)


def visit_code(projection_KD: Array, state_D: Array) -> Array:
    """Return which of 2^K boxes holds a state: the signs of K random projections (SimHash).

    Counts over a continuous space need boxes (Tang et al., 2017, #Exploration).
    """
    bits_K = projection_KD @ state_D > 0
    return (bits_K * 2 ** jnp.arange(len(bits_K))).sum()

"""The arrays that enter and leave the server's part of a compiled program.

Shape letters: F federated lanes, N agents, B environments, X rows of one step: B and the recalled.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedhql.compiled.compiled_cohort import Learners
from fedhql.environments.lanes import Episodes
from fedhql.federation.replay import Transitions, replay_draws
from fedhql.federation.step import action_draws, random_probability

Array = jax.Array


class ArmNumbers(NamedTuple):
    """The federation settings that may differ between lanes: (F,) each."""

    rule_numbers: Mapping[str, Array]  # setting -> numbers, for all rules in use
    learning_rate: Array  # α_s
    pessimism: Array  # μ
    auditions: Array  # the environments in which each agent acts alone
    random_actions: Array  # their probability before the first env step
    random_actions_env_steps: Array  # over which it falls to 0; 0: it is constant
    horizon_steps: Array
    query_batch: Array
    replay_batch: Array  # R
    replay_capacity: Array
    rule: Array  # index into the server's rules
    carry_over: Array  # whether unfinished episodes continue in the next round
    public: Array  # whether every round asks about the same states
    attack: Array  # the number of the attack
    attackers: Array


class Draws(NamedTuple):
    """The random numbers of a round, for H steps."""

    recalled: Array  # (H, F, R) which transitions to recall; R is 0 without replay
    actions: Array  # (H, F, B) for `explore`; B is 0 if no lane takes random actions
    random_probability: Array  # (F,) of random actions in this round


class Outcome(NamedTuple):
    """The result of a round in each lane."""

    server_env_steps: Array  # (F,)
    sums: Array  # (F, 3) sums of spread, TD error and loss over all server transitions
    refused: Array  # (F, N) number of answers left out
    unanswered: Array  # (F,) whether some exchange had no usable answer


class ServerStep(NamedTuple):
    """The result of lines 7 to 13. X states are broadcast, with replay also earlier ones."""

    learners: Learners
    episodes: Episodes
    actions: Array  # (F, X)
    targets: Array  # (F, X), or (F, X, A) for all actions
    ended: Array  # (F, B)
    transitions: Transitions  # of this step: B rows
    weights: Array | None  # (F, N) for a weighted rule
    earnings: Array | None  # (F, N) in auditions
    sums: Array  # (F, 3)
    refused: Array  # (F, N)
    unanswered: Array  # (F,)


def draws_of_round(
    arms: ArmNumbers, seeds_FB: NDArray[np.uint32], own_env_steps_F: NDArray[np.int64] | int
) -> Draws:
    """Return the draws of every lane, from the seeds of its environments.

    `own_env_steps_F` are the env steps that each agent has taken itself.
    """
    falling = np.asarray(arms.random_actions), np.asarray(arms.random_actions_env_steps)
    batches, explores_F = arms.replay_batch.tolist(), np.asarray(arms.random_actions) > 0
    environments = (explores_F * arms.query_batch).tolist()
    B = seeds_FB.shape[1] if explores_F.any() else 0
    return Draws(
        _draws(replay_draws, arms, seeds_FB, batches, max(batches)),
        _draws(action_draws, arms, seeds_FB, environments, B),
        jnp.asarray(random_probability(*falling, own_env_steps_F)),
    )


def _draws(
    draw: Callable[[Sequence[int], int, int], NDArray[np.uint32]],
    arms: ArmNumbers,
    seeds_FB: NDArray[np.uint32],
    sizes: Sequence[int],
    largest: int,
) -> Array:
    """Return the draws of every lane, of its own size, for the longest horizon: (H, F, largest)."""
    horizons = arms.horizon_steps.tolist()
    draws_HFX = np.zeros((max(horizons), len(seeds_FB), largest), dtype=np.uint32)
    for lane, (H, X) in enumerate(zip(horizons, sizes, strict=True)):
        draws_HFX[:H, lane, :X] = draw(seeds_FB[lane].tolist(), H, X)
    return jnp.asarray(draws_HFX)

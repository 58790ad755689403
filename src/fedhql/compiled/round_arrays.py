"""The arrays that enter and leave the server's part of a compiled program.

Shape letters: F federated lanes, N agents, B environments, X rows of one step: B and the recalled.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax

from fedhql.compiled.compiled_cohort import Learners
from fedhql.environments.lanes import Episodes
from fedhql.federation.replay import Transitions

Array = jax.Array


class ArmNumbers(NamedTuple):
    """The federation settings that may differ between lanes: (F,) each."""

    rule_numbers: Mapping[str, Array]  # setting -> numbers, for all rules in use
    learning_rate: Array  # α_s
    pessimism: Array  # μ
    horizon_steps: Array
    query_batch: Array
    replay_batch: Array  # R
    replay_capacity: Array
    rule: Array  # index into the server's rules
    carry_over: Array  # whether unfinished episodes continue in the next round
    public: Array  # whether every round asks about the same states
    attack: Array  # the number of the attack
    attackers: Array


class Outcome(NamedTuple):
    """The result of a round in each lane."""

    server_env_steps: Array  # (F,)
    sums: Array  # (F, 3) sums of spread, TD error and loss over all server transitions
    refused: Array  # (F, N) number of answers left out
    unanswered: Array  # (F,) whether some exchange had no usable answer


class ServerStep(NamedTuple):
    """The result of lines 7 to 13. Y rows are broadcast: X, or X · A for all actions."""

    learners: Learners
    episodes: Episodes
    actions: Array  # (F, Y)
    targets: Array  # (F, Y)
    ended: Array  # (F, B)
    transitions: Transitions  # of this step: B rows
    weights: Array | None  # (F, N) for a weighted rule
    sums: Array  # (F, 3)
    refused: Array  # (F, N)
    unanswered: Array  # (F,)

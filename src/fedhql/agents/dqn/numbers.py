"""The settings of DQN agents as arrays, for programs that many agents share."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedhql.agents.dqn.config import DqnConfig
from fedhql.agents.exploration import annealing_of

Array = jax.Array


class Numbers(NamedTuple):
    """The settings that may differ between lanes of one program: (L,) each.

    Everything else about an agent is part of the program's shape.
    """

    discount: Array
    learning_rate: Array
    tau: Array
    max_grad_norm: Array
    exploration_final_eps: Array
    exploration_initial_eps: Array
    anneal_env_steps: Array  # over which ε falls
    anneal_period: Array  # env steps after which ε starts again: int32, at most `NEVER`
    temperature: Array
    confidence: Array
    improvement_learning_rate: Array
    improvement_value_unit: Array
    improvement_max_grad_norm: Array
    target_follows_improvement: Array
    tanh: Array  # in a mixed network: whether this agent uses tanh
    depth: Array  # in a mixed network: how many hidden layers this agent has


def numbers_of(
    configs_L: Sequence[DqnConfig],
    *,
    discount: float,
    budget_env_steps: int,
    phase_env_steps: int | None = None,
) -> Numbers:
    """Return the numbers of these agents, one row for each lane.

    Raise AgentRefused if one anneals ε in each phase and `phase_env_steps` is None.
    """
    annealings = [
        annealing_of(
            c.exploration_annealing, c.exploration_fraction, budget_env_steps, phase_env_steps
        )
        for c in configs_L
    ]
    own = {
        "discount": [discount] * len(configs_L),
        "anneal_env_steps": [annealing.env_steps for annealing in annealings],
        "anneal_period": [annealing.period for annealing in annealings],
        "tanh": [c.activation == "tanh" for c in configs_L],
        "depth": [len(c.hidden) for c in configs_L],
    }
    return Numbers(
        *(
            jnp.asarray(own.get(name) or [getattr(c, name) for c in configs_L])
            for name in Numbers._fields
        )
    )

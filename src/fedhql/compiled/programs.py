"""The compiled programs of a grid's rounds, and how to compile them side by side."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedhql.agents.dqn.config import SILENT_AT_STATES
from fedhql.agents.dqn.experience import Experience, last_states
from fedhql.agents.dqn.learner import Learner
from fedhql.agents.dqn.numbers import Numbers
from fedhql.agents.dqn.phases import Lower, phase_programs
from fedhql.agents.dqn.population import Dqn
from fedhql.compiled.compiled_cohort import Learners
from fedhql.compiled.evaluation import play_together
from fedhql.compiled.replay import Memories
from fedhql.compiled.round_arrays import ArmNumbers, Draws, Outcome, draws_of_round
from fedhql.compiled.server import Server
from fedhql.environments.lanes import Episodes, begin_episodes, go_on

Array = jax.Array


@partial(jax.jit, static_argnums=0, donate_argnames=("learners", "memories", "earnings_FN"))
def federate_first(
    server: Server,
    learners: Learners,
    numbers: tuple[Numbers, ...],
    arms: ArmNumbers,
    episodes: Episodes,
    memories: Memories | None,
    earnings_FN: Array | None,
    draws: Draws,
    affordable_F: Array,
) -> tuple[Learners, Outcome, Episodes, Array, Memories | None, Array | None]:
    """Federate the first lanes; return the learners of the others unchanged."""
    F = len(affordable_F)
    first: Callable[[Any], Any] = partial(server.cohort.first, lanes=F)
    improved, *after_round = server.federate(
        first(learners), first(numbers), arms, episodes, memories, earnings_FN, draws, affordable_F
    )
    after = jax.tree.map(lambda all_, new: all_.at[: len(new)].set(new), learners, improved)
    return after, *after_round


@partial(jax.jit, static_argnums=0)
def silent_units(dqn: Dqn, learner: Learner, numbers: Numbers, experience: Experience) -> Array:
    states_RSD = last_states(experience, SILENT_AT_STATES)
    return jax.vmap(dqn.network.silent_units)(learner.parameters, states_RSD, numbers.tanh)


def compile_ahead(
    server: Server,
    learners: Learners,
    experiences: tuple[Experience, ...],
    numbers: tuple[Numbers, ...],
    arms: ArmNumbers,
    memories: Memories | None,
    earnings_FN: Array | None,
    *,
    episodes: int,
    query_batch: int,
    step_limit: int,
) -> None:
    """Compile the programs of a GPU's rounds in threads, and keep them for the calls.

    XLA compiles most of a program on one core, and LunarLander's physics are in several of them.
    Only the shapes of the arguments matter.
    """
    shapes: Callable[[Any], Any] = partial(jax.eval_shape, lambda tree: tree)
    learners, experiences, numbers, memories = shapes((learners, experiences, numbers, memories))
    F, agents = len(arms.learning_rate), sum(len(of.discount) for of in numbers)
    begin: Callable[[Any], Any] = partial(jax.eval_shape, partial(begin_episodes, server.lanes))
    given = learners, numbers, arms

    played = jnp.zeros((agents + F) * episodes, dtype=jnp.uint32)
    dqns = tuple(each.dqn for each in server.cohort.members)
    lowers: list[Lower] = [
        *phase_programs(dqns, learners, experiences, numbers),
        partial(begin_episodes.lower, server.lanes, played),
        partial(play_together.lower, server, *given, begin(played), step_limit),
    ]
    if F:
        seeds_M = jnp.zeros(F * query_batch, dtype=jnp.uint32)
        open_M = jnp.zeros(F * query_batch, dtype=bool)
        affordable_F = jnp.zeros(F, dtype=jnp.int32)
        begun = begin(seeds_M)
        draws = draws_of_round(arms, np.zeros((F, query_batch), dtype=np.uint32), 0)
        round_ = begun, memories, earnings_FN, draws, affordable_F
        lowers += [
            partial(begin_episodes.lower, server.lanes, seeds_M),
            partial(federate_first.lower, server, *given, *round_),
        ]
        if server.carry_over:
            lowers.append(partial(go_on.lower, server.lanes, begun, open_M, seeds_M))
    with ThreadPoolExecutor() as threads:
        for compiling in [threads.submit(_compile, lower) for lower in lowers]:
            compiling.result()


def _compile(lower: Lower) -> None:
    lower().compile()

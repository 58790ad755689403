"""Run one self-learning phase of populations: by the compiled loop, or on a GPU by kernels."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from fedhql.agents.dqn.draws import chunk_draws, episode_seeds
from fedhql.agents.dqn.experience import Experience
from fedhql.agents.dqn.kernels.matrices import side
from fedhql.agents.dqn.kernels.network import MOST_WIDTH, TiledNetwork
from fedhql.agents.dqn.kernels.self_learning import Phase
from fedhql.agents.dqn.kernels.training import Training
from fedhql.agents.dqn.kernels.updates import Update
from fedhql.agents.dqn.learner import Learner, begin_self_learning
from fedhql.agents.dqn.numbers import Numbers
from fedhql.agents.dqn.population import Dqn, Population
from fedhql.environments.lanes import TwinLanes, begin_episodes

Array = jax.Array
Lower = Callable[[], jax.stages.Lowered]  # traces a program, which can then be compiled


def advance(
    dqn: Dqn,
    learner: Learner,
    experience: Experience,
    numbers: Numbers,
    begin: int,
    until: int,
    *,
    new_phase: bool = True,
) -> Population:
    """Self-learn from env step `begin`, the population's present one, to `until`; compiled.

    If the lanes cannot keep episodes, a new phase begins new ones. The program reuses the memory of
    `learner` and `experience`, so the caller must not use them again.
    """
    if new_phase and not dqn.lanes.keeps_episodes:
        seeds_L = episode_seeds(experience.keys, begin)
        experience = experience._replace(episodes=begin_episodes(dqn.lanes, seeds_L))
    return _self_learn(
        dqn,
        learner,
        experience,
        numbers,
        _draws(dqn, experience, begin),
        jnp.int32(until),
        steady=jax.default_backend() != "cpu" and is_steady(dqn, begin, until),
    )


def advance_side_by_side(
    dqns: tuple[Dqn, ...],
    learners: tuple[Learner, ...],
    experiences: tuple[Experience, ...],
    numbers: tuple[Numbers, ...],
    begin: int,
    until: int,
    *,
    interpret: bool = False,
) -> tuple[Population, ...]:
    """Self-learn several populations by their kernels, which a GPU runs at the same time.

    Each must have a `phase_kernel`, and the phase must be steady. The memory of learners and
    experiences is reused. `interpret` runs the kernels without a GPU, for tests.
    """
    draws = tuple(_draws(dqn, of, begin) for dqn, of in zip(dqns, experiences, strict=True))
    return _learn_side_by_side(
        dqns, learners, experiences, numbers, draws, jnp.int32(until), interpret=interpret
    )


def phase_programs(
    dqns: tuple[Dqn, ...],
    learners: tuple[Learner, ...],
    experiences: tuple[Experience, ...],
    numbers: tuple[Numbers, ...],
) -> list[Lower]:
    """Return the programs that phases of these populations call on a GPU; shapes are enough.

    One more is compiled when it is called, if some populations have kernels for a phase and others
    do not learn in it yet.
    """
    until = jnp.int32(0)
    draws = tuple(
        jax.eval_shape(partial(_draws, dqn, begin=0), of)
        for dqn, of in zip(dqns, experiences, strict=True)
    )
    each = [*zip(dqns, learners, experiences, numbers, draws, strict=True)]
    lowers: list[Lower] = [
        partial(chunk_draws.lower, of.keys, 0, dqn.chunks, dqn.draws_a_chunk)
        for dqn, of in zip(dqns, experiences, strict=True)
    ]
    lowers += [partial(_self_learn.lower, *of, until, steady=False) for of in each]
    if all(phase_kernel(dqn) is not None for dqn in dqns):
        given = dqns, learners, experiences, numbers, draws, until
        return [partial(_learn_side_by_side.lower, *given, interpret=False), *lowers]
    return [*(partial(_self_learn.lower, *of, until, steady=True) for of in each), *lowers]


def is_steady(dqn: Dqn, begin: int, until: int) -> bool:
    """Return whether a phase consists of whole chunks that all train."""
    whole = begin % dqn.train_freq == 0 and dqn.phase_env_steps % dqn.train_freq == 0
    trains = begin + dqn.train_freq > dqn.learning_starts
    return whole and trains and until - begin == dqn.phase_env_steps


def is_kernel_phase(dqn: Dqn, begin: int, until: int) -> bool:
    """Return whether a GPU kernel can run this phase here."""
    on_gpu = jax.default_backend() == "gpu"
    return on_gpu and phase_kernel(dqn) is not None and is_steady(dqn, begin, until)


def phase_kernel(dqn: Dqn) -> Phase | None:
    """Return the GPU kernel of a steady phase, if there is one for these settings."""
    network, lanes, update = dqn.network, dqn.lanes, Update.of(dqn.optimiser)
    known = dqn.exploration == "epsilon-greedy" and dqn.batch_size == side(dqn.batch_size)
    if update is None or not known or not isinstance(lanes, TwinLanes):
        return None
    whole_chunks = dqn.phase_env_steps % dqn.train_freq == 0
    narrow = max(network.inputs, *network.hidden, network.outputs) <= MOST_WIDTH
    if not (lanes.twin.in_kernels and network.hidden and narrow and whole_chunks):
        return None
    training = Training(
        TiledNetwork(network),
        update,
        dqn.capacity,
        dqn.batch_size,
        dqn.gradient_steps,
        dqn.double,
        lanes.observation_size,
        first_draw=dqn.train_freq * dqn.draws_a_step,
    )
    return Phase(
        training,
        lanes.twin,
        dqn.phase_env_steps // dqn.train_freq,
        dqn.train_freq,
        dqn.learning_starts if dqn.warm_up == "uniform" else 0,
        dqn.target_update_interval,
    )


def self_learn_by_kernel(
    dqn: Dqn,
    learner: Learner,
    experience: Experience,
    numbers: Numbers,
    draws_CLW: Array,
    until: Array,
    *,
    interpret: bool = False,
) -> Population:
    """Do the same as `Dqn.self_learn` in a steady phase, in one kernel."""
    kernel = phase_kernel(dqn)
    assert kernel is not None  # the caller has asked
    learner = jax.vmap(begin_self_learning)(learner, numbers)
    learner, experience = kernel.run(
        learner, experience, numbers, draws_CLW[: kernel.chunks], interpret=interpret
    )
    return learner, experience._replace(env_steps=until)


def _draws(dqn: Dqn, experience: Experience, begin: int) -> Array:
    """Return the draws of a phase; a separate program, so that agents of all shapes share it."""
    return chunk_draws(experience.keys, begin // dqn.train_freq, dqn.chunks, dqn.draws_a_chunk)


_self_learn = jax.jit(
    Dqn.self_learn, static_argnums=0, static_argnames="steady", donate_argnums=(1, 2)
)


@partial(jax.jit, static_argnums=0, static_argnames="interpret", donate_argnums=(1, 2))
def _learn_side_by_side(
    dqns: tuple[Dqn, ...],
    learners: tuple[Learner, ...],
    experiences: tuple[Experience, ...],
    numbers: tuple[Numbers, ...],
    draws: tuple[Array, ...],
    until: Array,
    *,
    interpret: bool,
) -> tuple[Population, ...]:
    each = zip(dqns, learners, experiences, numbers, draws, strict=True)
    return tuple(
        self_learn_by_kernel(dqn, a, b, c, d, until, interpret=interpret)
        for dqn, a, b, c, d in each
    )

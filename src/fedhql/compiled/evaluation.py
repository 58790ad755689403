"""Greedy episodes of many policies at once, inside a compiled program."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedhql.agents.dqn.learner import Learner
from fedhql.agents.dqn.numbers import Numbers
from fedhql.agents.dqn.population import Dqn
from fedhql.compiled.compiled_cohort import Learners, Members
from fedhql.compiled.round_arrays import ArmNumbers
from fedhql.compiled.server import Server
from fedhql.environments.lanes import Episodes, Lanes

Array = jax.Array
# Returns, discounted returns, lengths and start values: (R, E) each, for R policies.
Played = tuple[Array, Array, Array, Array]
Figures = tuple[NDArray[np.float64], ...]  # the same as NumPy's arrays


@partial(jax.jit, static_argnums=(0, 4))
def play_agents(
    dqn: Dqn, learner: Learner, numbers: Numbers, episodes: Episodes, step_limit: int
) -> Played:
    """Play greedy episodes with each of the R agents of a population."""

    def q_of(states_RED: Array, running_RE: Array) -> Array:
        return dqn.q_values(learner, numbers, states_RED)

    return _play(dqn.lanes, q_of, numbers.discount, episodes, step_limit)


@partial(jax.jit, static_argnums=(0, 1, 6))
def play_consensus(
    server: Server,
    lanes: Lanes,
    learners: Learners,
    numbers: tuple[Numbers, ...],
    arms: ArmNumbers,
    episodes: Episodes,
    step_limit: int,
) -> Played:
    """Play greedy episodes in the centre of all agents' answers, in each of the F first lanes."""
    F = len(arms.learning_rate)
    first: Callable[[Any], Any] = partial(server.cohort.first, lanes=F)
    q_of = partial(server.centre, first(learners), first(numbers), arms)
    return _play(lanes, q_of, jnp.full(F, server.discount), episodes, step_limit)


@partial(jax.jit, static_argnums=(0, 5))
def play_together(
    server: Server,
    learners: Learners,
    numbers: tuple[Numbers, ...],
    arms: ArmNumbers,
    episodes: Episodes,
    step_limit: int,
) -> Played:
    """Play greedy episodes with all agents, population by population, then with the consensus.

    So a GPU has one program to compile, instead of one for each population and one more.
    """
    F = len(arms.learning_rate)
    first: Callable[[Any], Any] = partial(server.cohort.first, lanes=F)
    ends = np.cumsum([len(of.discount) for of in numbers]).tolist()

    def q_of(states_RED: Array, running_RE: Array) -> Array:
        *own, common = jnp.split(states_RED, ends)
        each = zip(server.cohort.members, learners, numbers, own, strict=True)
        q = [members.dqn.q_values(learner, of, states) for members, learner, of, states in each]
        if F:
            running_FE = running_RE[ends[-1] :]
            q.append(server.centre(first(learners), first(numbers), arms, common, running_FE))
        return jnp.concatenate(q)

    discounts = [*(of.discount for of in numbers), jnp.full(F, server.discount)]
    return _play(server.lanes, q_of, jnp.concatenate(discounts), episodes, step_limit)


def _play(
    lanes: Lanes,
    q_of: Callable[[Array, Array], Array],
    discount_R: Array,
    episodes: Episodes,
    step_limit: int,
) -> Played:
    """Play; `q_of` takes states (R, E, D) and which episodes run (R, E), and returns (R, E, A)."""
    R = len(discount_R)

    def values(episodes: Episodes, running: Array) -> Array:
        states_RED = lanes.observe(episodes).reshape(R, -1, lanes.observation_size)
        return q_of(states_RED, running.reshape(R, -1))

    def playing(carry: Any) -> Array:
        step_number, _, running, *_ = carry
        return running.any() & (step_number < step_limit)

    def play(carry: Any) -> Any:
        step_number, episodes, running, returns, discounted, lengths, start_values = carry
        q_REA = values(episodes, running)
        # An agent that answers NaN still has to act; it takes an action with a value, if any.
        greedy = jnp.where(jnp.isnan(q_REA), -jnp.inf, q_REA).argmax(axis=2).ravel()
        start_values = jnp.where(step_number == 0, q_REA.max(axis=2).ravel(), start_values)
        step = lanes.step(episodes, greedy, running)
        rewards = jnp.where(running, step.rewards, 0)
        factors = jnp.repeat(discount_R**step_number, len(rewards) // R)
        return (
            step_number + 1,
            step.episodes,
            running & ~step.ended,
            returns + rewards,
            discounted + factors * rewards,
            lengths + running,
            start_values,
        )

    zeros = jnp.zeros(len(lanes.observe(episodes)))
    counts = jnp.zeros_like(zeros, dtype=jnp.int32)
    start = (jnp.int32(0), episodes, zeros == 0, zeros, zeros, counts, zeros)
    _, _, _, *played = jax.lax.while_loop(playing, play, start)
    returns, discounted, lengths, start_values = (of.reshape(R, -1) for of in played)
    return returns, discounted, lengths, start_values


def as_figures(played: Played) -> Figures:
    return tuple(np.asarray(figure, dtype=np.float64) for figure in played)


def of_all_agents(played: Iterable[tuple[Members, Figures]], shape_LNE: tuple[int, ...]) -> Figures:
    """Return figures (L, N, E), each put together from those of the populations."""
    L, _, E = shape_LNE
    whole = tuple(np.zeros(shape_LNE) for _ in range(4))
    for each, figures in played:
        for of_all, of_population in zip(whole, figures, strict=True):
            of_all[:, each.agents] = of_population.reshape(L, -1, E)
    return whole

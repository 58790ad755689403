"""Self-learning of many DQN agents at once; a whole phase is one loop that JAX can compile.

For speed on a CPU, no Python runs between steps, all random numbers of a phase are drawn at once,
transitions are rows of one array that is written in place, and environments step inside the
program.

A phase consists of chunks of `train_freq` steps, each followed by training. A chunk's randomness
depends only on the agent and the number of the chunk, so results do not depend on how steps are
divided into phases.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import cycle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedhql.agents.dqn import exploration
from fedhql.agents.dqn.config import DqnConfig, Keywords
from fedhql.agents.dqn.draws import initial_parameters
from fedhql.agents.dqn.experience import Experience, new_experience, remember, replayed
from fedhql.agents.dqn.learner import (
    Learner,
    begin_self_learning,
    begins_improving,
    improve,
    new_learner,
    train,
    update_target,
    where,
)
from fedhql.agents.dqn.network import Network, embed
from fedhql.agents.dqn.numbers import Numbers
from fedhql.agents.dqn.optimisers import Optimiser
from fedhql.environments.lanes import Lanes

Array = jax.Array
Population = tuple[Learner, Experience]  # every array of the learner has a first axis L


@dataclass(frozen=True)
class Dqn:
    """Everything that determines the shape of the program. Methods are pure and can be traced."""

    network: Network
    lanes: Lanes
    phase_env_steps: int  # the most steps of one call of `self_learn`
    capacity: int
    batch_size: int
    train_freq: int
    learning_starts: int
    warm_up: str
    optimizer: str
    optimizer_kwargs: Keywords
    target_update_interval: int
    gradient_steps: int
    exploration: str
    double: bool
    improvement_steps: int
    improvement_optimiser: str
    improvement_revives_units: bool

    @classmethod
    def of(
        cls, config: DqnConfig, network: Network, lanes: Lanes, phase_env_steps: int, capacity: int
    ) -> "Dqn":
        return cls(network, lanes, phase_env_steps, capacity, **program_of(config))

    @property
    def chunks(self) -> int:
        """Return the most chunks of a phase, which may begin and end inside a chunk."""
        return -(-self.phase_env_steps // self.train_freq) + 1

    @property
    def draws_a_chunk(self) -> int:
        """Return how many uniform numbers a chunk takes, for its env steps and its batches."""
        return self.train_freq * self.draws_a_step + self.gradient_steps * self.batch_size

    @property
    def draws_a_step(self) -> int:
        """Return how many uniform numbers an env step takes: two for its action, and a restart."""
        return 2 + self.lanes.start_draws

    @property
    def optimiser(self) -> Optimiser:
        return Optimiser(self.optimizer, self.optimizer_kwargs)

    @property
    def _improver(self) -> Optimiser:
        return Optimiser(self.improvement_optimiser)

    def initialise(self, seeds_L: NDArray[np.uint32], networks: Sequence[Network]) -> Population:
        """Return new agents; each depends only on its seed and network.

        `networks` are the agents' networks before padding. The list repeats over the lanes.
        """
        parameters_LP = np.stack(
            [
                embed(initial_parameters(network, seed), network, self.network)
                for network, seed in zip(cycle(networks), seeds_L, strict=False)
            ]
        )
        counting = self.exploration == "ucb"
        experience = new_experience(self.lanes, seeds_L, self.capacity, counting=counting)
        begin = partial(
            new_learner,
            self.network,
            optimiser=self.optimiser,
            improver=self._improver,
            revives=self.improvement_revives_units,
        )
        return jax.vmap(begin)(jnp.asarray(parameters_LP)), experience

    def self_learn(
        self,
        learner: Learner,
        experience: Experience,
        numbers: Numbers,
        draws_CLW: Array,
        until: Array,
        *,
        steady: bool = False,
    ) -> Population:
        """Self-learn until every lane has taken `until` env steps in total.

        `steady` promises a whole phase of whole chunks that all train. The program then has no
        conditions, which on a GPU cost more than the work that they save.
        """
        begin = experience.env_steps
        learner = jax.vmap(begin_self_learning)(learner, numbers)
        first = begin // self.train_freq
        whole = self.phase_env_steps // self.train_freq
        chunks = whole if steady else -(-until // self.train_freq) - first

        def chunk(number: Array, population: Population) -> Population:
            at = (first + number) * self.train_freq
            draws_LW = draws_CLW[number]
            return self._chunk(*population, numbers, draws_LW, at, begin, until, steady=steady)

        learner, experience = jax.lax.fori_loop(0, chunks, chunk, (learner, experience))
        return learner, experience._replace(env_steps=until)

    def q_values(self, learner: Learner, numbers: Numbers, states_LBD: Array) -> Array:
        """Return each lane's values at its own states: (L, B, A)."""
        return jax.vmap(self.network.q_values)(
            learner.parameters, states_LBD, numbers.tanh, numbers.depth
        )

    def improve(
        self,
        learner: Learner,
        numbers: Numbers,
        states_LBD: Array,
        actions_LB: Array | None,
        targets: Array,
        weights_LB: Array,
    ) -> Learner:
        each = partial(
            improve,
            self.network,
            steps=self.improvement_steps,
            optimiser=self._improver,
            anyone_begins=begins_improving(learner, weights_LB).any(),
        )
        return jax.vmap(each)(learner, numbers, states_LBD, actions_LB, targets, weights_LB)

    def _chunk(
        self,
        learner: Learner,
        experience: Experience,
        numbers: Numbers,
        draws_LW: Array,
        at: Array,
        begin: Array,
        until: Array,
        *,
        steady: bool,
    ) -> Population:
        """Take the env steps of the chunk at `at` that are in [begin, until), then train."""
        L, first = len(draws_LW), self.train_freq * self.draws_a_step
        step_draws = draws_LW[:, :first].reshape(L, self.train_freq, self.draws_a_step)
        batch_draws = draws_LW[:, first:].reshape(L, self.gradient_steps, self.batch_size)

        def act(offset: Array | int, experience: Experience) -> Experience:
            env_step = at + offset
            active = True if steady else (env_step >= begin) & (env_step < until)
            draws_L = step_draws[:, offset]
            return self._act(learner, experience, numbers, draws_L, env_step, active)

        # Unrolling a few steps is faster; unrolling many would take long to compile.
        unroll = min(self.train_freq, 4)
        experience = jax.lax.fori_loop(0, self.train_freq, act, experience, unroll=unroll)
        after = at + self.train_freq
        rows = replayed(experience, after, batch_draws)

        def synchronise(learner: Learner) -> Learner:
            return Learner(*jax.vmap(partial(update_target, syncs))(learner, numbers))

        def trained(learner: Learner) -> Learner:
            def step(number: Array, learner: Learner) -> Learner:
                one = partial(train, self.network, double=self.double, optimiser=self.optimiser)
                return Learner(*jax.vmap(one)(learner, numbers, rows[:, number]))

            return Learner(*jax.lax.fori_loop(0, self.gradient_steps, step, learner))

        counted = jnp.minimum(after, until), jnp.maximum(at, begin)
        syncs = (
            counted[0] // self.target_update_interval - counted[1] // self.target_update_interval
        )
        if steady:
            return trained(where(syncs > 0, synchronise(learner), learner)), experience
        # One condition for all lanes: a choice for each lane would read and write every weight.
        learner = jax.lax.cond(syncs > 0, synchronise, _unchanged, learner)
        due = (after <= until) & (after > self.learning_starts)
        return jax.lax.cond(due, trained, _unchanged, learner), experience

    def _act(
        self,
        learner: Learner,
        experience: Experience,
        numbers: Numbers,
        draws: Array,
        env_step: Array,
        active: Array | bool,
    ) -> Experience:
        """Take one env step in every lane and store it; if not `active`, change nothing."""
        states_LD = self.lanes.observe(experience.episodes)
        q_LA = self.q_values(learner, numbers, states_LD[:, None])[:, 0]
        actions_L, visits = self._choose(experience, numbers, states_LD, q_LA, draws, env_step)
        step = self.lanes.step_and_restart(experience.episodes, actions_L, draws[:, 2:], active)
        experience = remember(experience, env_step, states_LD, actions_L, step, active)
        return experience._replace(visits=where(active, visits, experience.visits))

    def _choose(
        self,
        experience: Experience,
        numbers: Numbers,
        states_LD: Array,
        q_LA: Array,
        draws: Array,
        env_step: Array,
    ) -> tuple[Array, Array]:
        """Return the actions (L,) and the updated visits."""
        visits = experience.visits
        lanes_L = jnp.arange(q_LA.shape[0])
        match self.exploration:
            case "epsilon-greedy":
                epsilon_L = exploration.annealed_epsilon(numbers, env_step)
                actions_L = jax.vmap(exploration.epsilon_greedy)(q_LA, epsilon_L, draws)
            case "boltzmann":
                actions_L = jax.vmap(exploration.boltzmann)(q_LA, numbers.temperature, draws[:, 0])
            case _:
                codes_L = jax.vmap(exploration.visit_code)(experience.projections, states_LD)
                counts_LA = visits[lanes_L, codes_L]
                actions_L = jax.vmap(exploration.count_ucb)(q_LA, counts_LA, numbers.confidence)
        if self.warm_up == "uniform":
            random_L = exploration.uniform(q_LA.shape[1], draws[:, 1])
            actions_L = jnp.where(env_step < self.learning_starts, random_L, actions_L)
        if self.exploration == "ucb":
            visits = visits.at[lanes_L, codes_L, actions_L].add(1)
        return actions_L, visits


def program_of(config: DqnConfig) -> dict[str, Any]:
    """Return the settings that all agents of one program have in common."""
    names = (field.name for field in fields(Dqn))
    return {name: getattr(config, name) for name in names if hasattr(config, name)}


def _unchanged(learner: Learner) -> Learner:
    return learner

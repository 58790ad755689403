"""A steady self-learning phase as one kernel: the same steps as `Dqn.self_learn`, one agent each.

The environment's state stays in registers. Everything else stays in the GPU's memory, most of it in
caches.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from fedhql.agents.dqn import exploration
from fedhql.agents.dqn.experience import Experience
from fedhql.agents.dqn.kernels.matrices import Memory, side
from fedhql.agents.dqn.kernels.network import LOWEST, values_of_one, vector
from fedhql.agents.dqn.kernels.phase_arrays import PhaseInputs, PhaseState
from fedhql.agents.dqn.kernels.programs import Reference, barrier, for_each_agent
from fedhql.agents.dqn.kernels.training import Training
from fedhql.agents.dqn.learner import Learner
from fedhql.agents.dqn.numbers import Numbers
from fedhql.environments import triton
from fedhql.environments.kernels import restarted
from fedhql.environments.lanes import TwinEpisodes
from fedhql.environments.twins import Twin

Array = jax.Array
Episode = tuple[tuple[Array, ...], Array]  # the numbers of a state, and steps so far


@dataclass(frozen=True)
class Phase:
    """Everything that determines the shape of the kernel."""

    training: Training
    twin: Twin
    chunks: int
    train_freq: int
    random_until: int  # actions are random before this env step
    target_update_interval: int

    def run(
        self,
        learner: Learner,
        experience: Experience,
        numbers: Numbers,
        draws_CLW: Array,
        *,
        interpret: bool = False,
    ) -> tuple[Learner, Experience]:
        """Return learner and experience after the phase; `experience.env_steps` stays."""
        network, update = self.training.network, self.training.update
        steps, L = self.chunks * self.training.gradient_steps, len(learner.parameters)
        inputs = PhaseInputs(
            jax.tree.map(lambda number: number.astype(jnp.float32), numbers)._replace(
                anneal_period=numbers.anneal_period  # env steps are counted in int32
            ),
            jnp.broadcast_to(experience.env_steps, (L,)),
            jnp.moveaxis(draws_CLW, 1, 0),
            update.corrections(learner.optimizer, steps),
        )
        state = PhaseState(
            network.padded(learner.parameters, LOWEST),
            network.padded(learner.target, LOWEST),
            update.moments(network, learner.optimizer),
            learner.loss,
            experience.replay,
            experience.episodes.states,
            experience.episodes.elapsed,
            jnp.zeros((L, network.size)),
            jnp.zeros((L, self.training.workspace.size)),
        )
        after = PhaseState(
            *for_each_agent(self._program, inputs, state, warps=network.warps, interpret=interpret)
        )
        learner = learner._replace(
            parameters=network.cut(after.parameters),
            target=network.cut(after.target),
            optimizer=update.after(network, learner.optimizer, after.moments, steps),
            loss=after.loss,
            updates=learner.updates + steps,
        )
        episodes = TwinEpisodes(after.states, after.elapsed)
        return learner, experience._replace(replay=after.replay, episodes=episodes)

    # The program of one agent; the arrays of `inputs` and `state` are references to its part.

    def _program(self, inputs: PhaseInputs, state: PhaseState) -> None:
        numbers = Numbers(*(number[...] for number in inputs.numbers))
        numbers = numbers._replace(tanh=numbers.tanh != 0)
        begin = inputs.begin[...]
        size = state.states.shape[0]
        world = tuple(state.states[number] for number in range(size))

        def run_chunk(chunk: Array, carry: tuple[Episode, Array]) -> tuple[Episode, Array]:
            episode, _ = carry
            at = begin + chunk * self.train_freq
            after = at + self.train_freq
            episode = self._act(inputs, state, numbers, chunk, at, episode)
            barrier()
            training, interval = state.in_memory(clock=at), self.target_update_interval
            self.training.update_target(training, numbers, after // interval - at // interval)
            return episode, self.training.train(inputs, training, numbers, chunk, after)

        start = (world, state.elapsed[...]), state.loss[...]
        (world, elapsed), loss = lax.fori_loop(0, self.chunks, run_chunk, start)
        for number, value in enumerate(world):
            state.states[number] = value
        state.elapsed[...], state.loss[...] = elapsed, loss

    def _act(
        self,
        inputs: PhaseInputs,
        state: PhaseState,
        numbers: Numbers,
        chunk: Array,
        at: Array,
        episode: Episode,
    ) -> Episode:
        """Take the env steps of a chunk and store them."""
        network, width = self.training.network, 2 + self.twin.start_draws

        def step(offset: Array, episode: Episode) -> Episode:
            world, elapsed = episode
            draws = [inputs.draws[chunk, offset * width + word] for word in range(width)]
            seen = self.twin.observe(world)
            state_D = vector(seen, network.shape.inputs)
            parameters = Memory(state.parameters, at + offset)
            q_A = values_of_one(network, parameters, numbers, state_D)
            action = self._choose(numbers, q_A, draws, at + offset)
            after, reward, terminated = self.twin.step(world, action)
            elapsed = elapsed + 1
            row = (*seen, *self.twin.observe(after), action, reward, terminated)
            self._remember(state.replay, at + offset, row)
            ended = terminated | (elapsed >= self.twin.step_limit)
            after = restarted(self.twin, ended, after, tuple(draws[2:]))
            return after, jnp.where(ended, 0, elapsed)

        return lax.fori_loop(0, self.train_freq, step, episode)

    def _choose(self, numbers: Numbers, q_A: Array, draws: list[Array], env_step: Array) -> Array:
        epsilon = exploration.annealed_epsilon(numbers, env_step)
        random = exploration.uniform(self.twin.action_count, draws[1])
        explores = (draws[0] < epsilon) | (env_step < self.random_until)
        return jnp.where(explores, random, q_A.argmax(axis=0).astype(jnp.int32))

    def _remember(self, replay: Reference, env_step: Array, row: tuple[Array, ...]) -> None:
        columns = jnp.arange(side(len(row)))
        slot = jnp.broadcast_to(env_step % self.training.capacity, columns.shape)
        values = vector(row, len(columns))
        triton.store(replay.at[slot, columns], values, mask=columns < len(row))

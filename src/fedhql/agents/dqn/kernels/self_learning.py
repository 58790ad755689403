"""A steady self-learning phase as one kernel: the same steps as `Dqn.self_learn`, one agent each.

The environment's state stays in registers. Everything else stays in the GPU's memory, most of it in
caches.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from fedhql.agents.dqn import exploration
from fedhql.agents.dqn.experience import Experience
from fedhql.agents.dqn.kernels.matrices import Matrix, Memory, for_rows, repeat, side
from fedhql.agents.dqn.kernels.network import (
    LOWEST,
    PIECE,
    TiledNetwork,
    Workspace,
    backward,
    forward,
    parameter_gradient,
    values_of_one,
    vector,
)
from fedhql.agents.dqn.kernels.programs import Part, Reference, barrier, for_each_agent
from fedhql.agents.dqn.kernels.updates import Moments, Update, piece, put_piece
from fedhql.agents.dqn.learner import Learner
from fedhql.agents.dqn.numbers import Numbers
from fedhql.environments.kernels import restarted
from fedhql.environments.lanes import TwinEpisodes
from fedhql.environments.twins import Twin

Array = jax.Array
Episode = tuple[tuple[Array, ...], Array]  # the numbers of a state, and steps so far


class Given(NamedTuple):
    """What a phase reads."""

    numbers: Numbers
    begin: Part  # (L,) env steps taken before this phase
    draws: Part  # (L, C, W)
    corrections: Part  # (L, C · G, 2) of Adam


class Changed(NamedTuple):
    """What a phase changes."""

    parameters: Part  # (L, T)
    target: Part  # (L, T)
    moments: Moments
    loss: Part  # (L,)
    replay: Part  # (L, capacity, R)
    states: Part  # (L, S)
    elapsed: Part  # (L,)
    gradient: Part  # (L, T), of one training step
    work: Part  # activations and their gradients, of one training step


@dataclass(frozen=True)
class Phase:
    """Everything that determines the shape of the kernel."""

    network: TiledNetwork
    twin: Twin
    update: Update
    chunks: int
    capacity: int
    batch_size: int
    train_freq: int
    gradient_steps: int
    random_until: int  # actions are random before this env step
    target_update_interval: int
    double: bool

    def run(
        self,
        learner: Learner,
        experience: Experience,
        numbers: Numbers,
        draws_CLW: Array,
        **options: Any,
    ) -> tuple[Learner, Experience]:
        """Return learner and experience after the phase; `experience.env_steps` stays."""
        network, steps = self.network, self.chunks * self.gradient_steps
        L = len(learner.parameters)
        given = Given(
            jax.tree.map(lambda number: number.astype(jnp.float32), numbers),
            jnp.broadcast_to(experience.env_steps, (L,)),
            jnp.moveaxis(draws_CLW, 1, 0),
            self.update.corrections(learner.optimizer, steps),
        )
        changed = Changed(
            network.padded(learner.parameters, LOWEST),
            network.padded(learner.target, LOWEST),
            self.update.moments(network, learner.optimizer),
            learner.loss,
            experience.replay,
            experience.episodes.states,
            experience.episodes.elapsed,
            jnp.zeros((L, network.size)),
            jnp.zeros((L, self._workspace.size)),
        )
        options = {"warps": network.warps} | options
        after = Changed(*for_each_agent(self._program, given, changed, **options))
        learner = learner._replace(
            parameters=network.cut(after.parameters),
            target=network.cut(after.target),
            optimizer=self.update.after(network, learner.optimizer, after.moments, steps),
            loss=after.loss,
            updates=learner.updates + steps,
        )
        episodes = TwinEpisodes(after.states, after.elapsed)
        return learner, experience._replace(replay=after.replay, episodes=episodes)

    @property
    def _workspace(self) -> Workspace:
        return Workspace(self.network, self.batch_size)

    # The program of one agent; the arrays of `given` and `changed` are references to its part.

    def _program(self, given: Given, changed: Changed) -> None:
        numbers = Numbers(*(number[...] for number in given.numbers))
        numbers = numbers._replace(tanh=numbers.tanh != 0)
        begin = given.begin[...]
        size = changed.states.shape[0]
        state = tuple(changed.states[number] for number in range(size))

        def chunk(number: Array, carry: tuple[Episode, Array]) -> tuple[Episode, Array]:
            episode, _ = carry
            at = begin + number * self.train_freq
            episode = self._act(given, changed, numbers, number, at, episode)
            barrier()
            memory = changed._replace(
                parameters=Memory(changed.parameters, at),
                target=Memory(changed.target, at),
                moments=tuple(Memory(moment, at) for moment in changed.moments),
                gradient=Memory(changed.gradient, at),
                work=Memory(changed.work, at),
            )
            self._follow(memory, numbers, at)
            return episode, self._train(given, memory, numbers, number, at + self.train_freq)

        start = (state, changed.elapsed[...]), changed.loss[...]
        (state, elapsed), loss = lax.fori_loop(0, self.chunks, chunk, start)
        for number, value in enumerate(state):
            changed.states[number] = value
        changed.elapsed[...], changed.loss[...] = elapsed, loss

    def _act(
        self,
        given: Given,
        changed: Changed,
        numbers: Numbers,
        number: Array,
        at: Array,
        episode: Episode,
    ) -> Episode:
        """Take the env steps of a chunk and store them."""
        network, width = self.network, 2 + self.twin.start_draws

        def step(offset: Array, episode: Episode) -> Episode:
            state, elapsed = episode
            draws = [given.draws[number, offset * width + word] for word in range(width)]
            seen = self.twin.observe(state)
            state_D = vector(seen, network.shape.inputs)
            parameters = Memory(changed.parameters, at + offset)
            q_A = values_of_one(network, parameters, numbers, state_D)
            action = self._choose(numbers, q_A, draws, at + offset)
            after, reward, terminated = self.twin.step(state, action)
            elapsed = elapsed + 1
            row = (*seen, *self.twin.observe(after), action, reward, terminated)
            self._remember(changed.replay, at + offset, row)
            ended = terminated | (elapsed >= self.twin.step_limit)
            after = restarted(self.twin, ended, after, tuple(draws[2:]))
            return after, jnp.where(ended, 0, elapsed)

        return lax.fori_loop(0, self.train_freq, step, episode)

    def _choose(self, numbers: Numbers, q_A: Array, draws: list[Array], env_step: Array) -> Array:
        epsilon = exploration.annealed_epsilon(
            numbers.exploration_final_eps,
            numbers.exploration_initial_eps,
            numbers.anneal_env_steps,
            env_step,
        )
        random = exploration.uniform(self.twin.action_count, draws[1])
        explores = (draws[0] < epsilon) | (env_step < self.random_until)
        return jnp.where(explores, random, q_A.argmax(axis=0).astype(jnp.int32))

    def _remember(self, replay: Reference, env_step: Array, row: tuple[Array, ...]) -> None:
        columns = jnp.arange(side(len(row)))
        slot = jnp.broadcast_to(env_step % self.capacity, columns.shape)
        values = vector(row, len(columns))
        triton.store(replay.at[slot, columns], values, mask=columns < len(row))

    def _follow(self, changed: Changed, numbers: Numbers, at: Array) -> None:
        """Let the target network follow, if an interval ends in the chunk at `at`."""
        interval = self.target_update_interval
        times = (at + self.train_freq) // interval - at // interval

        @pl.when(times > 0)
        def _() -> None:
            apart = (1 - numbers.tau) ** times

            def follow(at: int | Array, _: None) -> None:
                here = piece(changed.parameters, at)
                put_piece(changed.target, at, here + apart * (piece(changed.target, at) - here))

            repeat(self.network.size // PIECE, follow, None)
            barrier()

    def _train(
        self, given: Given, changed: Changed, numbers: Numbers, number: Array, filled: Array
    ) -> Array:
        """Take the gradient steps of a chunk; return the loss of the last."""
        activations = self._workspace.activations(changed.work)
        gradients = self._workspace.gradients(changed.work)

        def step(count: int | Array, _: Array) -> Array:
            picks = self._picks(given, number, count, filled)

            def some_rows(row: int | Array, rows: int, loss: Array) -> Array:
                picks_B = picks(row, rows)
                loss = loss + self._td(changed, numbers, activations, gradients[-1], picks_B, row)
                backward(
                    self.network,
                    changed.parameters,
                    numbers,
                    activations,
                    gradients,
                    row,
                    rows,
                )
                return loss

            loss = for_rows(self.batch_size, some_rows, jnp.float32(0))
            parameter_gradient(self.network, numbers, activations, gradients, changed.gradient)
            self.update.apply(
                changed.parameters,
                changed.moments,
                changed.gradient,
                numbers.learning_rate,
                numbers.max_grad_norm,
                given.corrections,
                number * self.gradient_steps + count,
            )
            return loss / self.batch_size

        return repeat(self.gradient_steps, step, jnp.float32(0))

    def _picks(self, given: Given, number: Array, count: int | Array, env_steps: Array) -> Any:
        """Return a function that gives the numbers of the transitions in some rows of a batch."""
        first = self.train_freq * (2 + self.twin.start_draws) + count * self.batch_size
        filled = jnp.minimum(env_steps, self.capacity)

        def picks(row: int | Array, rows: int) -> Array:
            draws_B = triton.load(given.draws.at[number, first + row + jnp.arange(rows)])
            return jnp.minimum((draws_B * filled).astype(jnp.int32), filled - 1)

        return picks

    def _td(
        self,
        changed: Changed,
        numbers: Numbers,
        activations: list[Matrix],
        gradient: Matrix,
        picks_B: Array,
        row: int | Array,
    ) -> Array:
        """Write the gradient of some rows' action values; return the sum of their Huber losses."""
        (rows,), D, replay = picks_B.shape, self.twin.observation_size, changed.replay

        def values(parameters: Memory, first: int) -> Array:
            barrier()  # a head may still be reading the states before these
            activations[0].put(row, _states(replay, picks_B, first, D))
            barrier()
            return forward(self.network, parameters, numbers, activations, row, rows)

        def column(which: int) -> Array:
            return triton.load(replay.at[picks_B, jnp.full(rows, which)])

        next_q_BA = values(changed.target, D)
        actions_A = jnp.arange(self.network.shape.outputs)[None]
        if self.double:
            choice_B = values(changed.parameters, D).argmax(axis=1)
            best_B = jnp.where(actions_A == choice_B[:, None], next_q_BA, 0.0).sum(axis=1)
        else:
            best_B = next_q_BA.max(axis=1)
        reward_B, terminated_B = column(2 * D + 1), column(2 * D + 2)
        targets_B = reward_B + numbers.discount * (1 - terminated_B) * best_B
        q_BA = values(changed.parameters, 0)
        chosen_BA = actions_A == column(2 * D).astype(jnp.int32)[:, None]
        errors_B = jnp.where(chosen_BA, q_BA, 0.0).sum(axis=1) - targets_B
        slope_B = jnp.clip(errors_B, -1.0, 1.0)  # of the Huber loss
        gradient.put(row, jnp.where(chosen_BA, slope_B[:, None] / self.batch_size, 0.0))
        barrier()
        # The loss is slope² / 2 inside of [-1, 1] and |error| - 1 / 2 outside.
        return (slope_B * (errors_B - 0.5 * slope_B)).sum()


def _states(replay: Reference, picks_B: Array, first: int, D: int) -> Array:
    """Return D columns of a replay memory from column `first` on, padded with zeros."""
    shape = len(picks_B), side(D)
    columns = jnp.broadcast_to(jnp.arange(side(D))[None], shape)
    rows = jnp.broadcast_to(picks_B[:, None], shape)
    return triton.load(replay.at[rows, first + columns], mask=columns < D, other=0.0)

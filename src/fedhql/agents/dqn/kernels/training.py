"""The gradient steps of a phase inside a kernel: the same as `learner.train`, one agent each."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from fedhql.agents.dqn.kernels.matrices import Matrix, Memory, for_rows, repeat, side
from fedhql.agents.dqn.kernels.network import (
    PIECE,
    TiledNetwork,
    Workspace,
    backward,
    forward,
    parameter_gradient,
)
from fedhql.agents.dqn.kernels.phase_arrays import PhaseInputs, PhaseState
from fedhql.agents.dqn.kernels.programs import Reference, barrier
from fedhql.agents.dqn.kernels.updates import Update, piece, put_piece
from fedhql.agents.dqn.numbers import Numbers
from fedhql.environments import triton

Array = jax.Array


@dataclass(frozen=True)
class Training:
    """Everything that determines the shape of the training after a chunk."""

    network: TiledNetwork
    update: Update
    capacity: int
    batch_size: int
    gradient_steps: int
    double: bool
    observation_size: int
    first_draw: int  # of the batches, in a chunk's draws; those of its env steps come before

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.network, self.batch_size)

    def update_target(self, state: PhaseState, numbers: Numbers, times: Array) -> None:
        """Apply `times` polyak updates to the target network, without training in between."""

        @pl.when(times > 0)
        def _() -> None:
            remaining = (1 - numbers.tau) ** times

            def update(at: int | Array, _: None) -> None:
                online = piece(state.parameters, at)
                gap = piece(state.target, at) - online
                put_piece(state.target, at, online + remaining * gap)

            repeat(self.network.size // PIECE, update, None)
            barrier()

    def train(
        self, inputs: PhaseInputs, state: PhaseState, numbers: Numbers, chunk: Array, filled: Array
    ) -> Array:
        """Take the gradient steps of a chunk; return the loss of the last."""
        activations = self.workspace.activations(state.work)
        gradients = self.workspace.gradients(state.work)

        def step(count: int | Array, _: Array) -> Array:
            picks = self._picks(inputs, chunk, count, filled)

            def some_rows(row: int | Array, rows: int, loss: Array) -> Array:
                picks_B = picks(row, rows)
                loss = loss + self._td(state, numbers, activations, gradients[-1], picks_B, row)
                backward(
                    self.network,
                    state.parameters,
                    numbers,
                    activations,
                    gradients,
                    row,
                    rows,
                )
                return loss

            loss = for_rows(self.batch_size, some_rows, jnp.float32(0))
            parameter_gradient(self.network, numbers, activations, gradients, state.gradient)
            self.update.apply(
                state.parameters,
                state.moments,
                state.gradient,
                numbers.learning_rate,
                numbers.max_grad_norm,
                inputs.corrections,
                chunk * self.gradient_steps + count,
            )
            return loss / self.batch_size

        return repeat(self.gradient_steps, step, jnp.float32(0))

    def _picks(
        self, inputs: PhaseInputs, chunk: Array, count: int | Array, env_steps: Array
    ) -> Callable[[int | Array, int], Array]:
        """Return a function that gives the numbers of the transitions in some rows of a batch."""
        first = self.first_draw + count * self.batch_size
        filled = jnp.minimum(env_steps, self.capacity)

        def picks(row: int | Array, rows: int) -> Array:
            draws_B = triton.load(inputs.draws.at[chunk, first + row + jnp.arange(rows)])
            return jnp.minimum((draws_B * filled).astype(jnp.int32), filled - 1)

        return picks

    def _td(
        self,
        state: PhaseState,
        numbers: Numbers,
        activations: list[Matrix],
        gradient: Matrix,
        picks_B: Array,
        row: int | Array,
    ) -> Array:
        """Write the gradient of some rows' action values; return the sum of their Huber losses."""
        (rows,), D, replay = picks_B.shape, self.observation_size, state.replay

        def values(parameters: Memory, first: int) -> Array:
            barrier()  # a head may still be reading the states before these
            activations[0].put(row, _states(replay, picks_B, first, D))
            barrier()
            return forward(self.network, parameters, numbers, activations, row, rows)

        def column(which: int) -> Array:
            return triton.load(replay.at[picks_B, jnp.full(rows, which)])

        next_q_BA = values(state.target, D)
        actions_A = jnp.arange(self.network.shape.outputs)[None]
        if self.double:
            choice_B = values(state.parameters, D).argmax(axis=1)
            best_B = jnp.where(actions_A == choice_B[:, None], next_q_BA, 0.0).sum(axis=1)
        else:
            best_B = next_q_BA.max(axis=1)
        reward_B, terminated_B = column(2 * D + 1), column(2 * D + 2)
        targets_B = reward_B + numbers.discount * (1 - terminated_B) * best_B
        q_BA = values(state.parameters, 0)
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

"""All gradient steps of an improvement as one kernel: the same steps as `learner.improve`."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import triton

from fedhql.agents.dqn.kernels.matrices import Memory, for_rows, side
from fedhql.agents.dqn.kernels.network import (
    LOWEST,
    TiledNetwork,
    Workspace,
    backward,
    forward,
    parameter_gradient,
)
from fedhql.agents.dqn.kernels.programs import Part, barrier, for_each_agent
from fedhql.agents.dqn.kernels.updates import Moments, Update
from fedhql.agents.dqn.learner import Improvement, Learner, improvement_step_size
from fedhql.agents.dqn.numbers import Numbers

Array = jax.Array


class Given(NamedTuple):
    """What an improvement reads."""

    numbers: Numbers
    step_size: Part  # (L,)
    clock: Part  # (L,) zeros
    actions: Part  # (L, B)
    targets: Part  # (L, B)
    shares: Part  # (L, B) of each row in the gradient
    corrections: Part  # (L, κ, 2) of Adam


class Changed(NamedTuple):
    """What an improvement changes."""

    parameters: Part  # (L, T)
    moments: Moments
    gradient: Part  # (L, T), of one step
    work: Part  # activations and their gradients, of one step


@dataclass(frozen=True)
class ImprovementSteps:
    """Everything that determines the shape of the kernel, except for the number of rows."""

    network: TiledNetwork
    update: Update
    steps: int

    def run(self, learner: Learner, numbers: Numbers, rows: Improvement, **options: Any) -> Learner:
        """Return the learner with other parameters and another state of its improver."""
        network = self.network
        step_size_L = jax.vmap(improvement_step_size)(numbers, rows.targets, rows.weights)
        L, B = rows.weights.shape
        work = Workspace(network, side(B))
        padded = Improvement(*(_grown(part, side(B)) for part in rows))
        D = rows.states.shape[2]
        states = jnp.pad(padded.states, ((0, 0), (0, 0), (0, side(D) - D))).reshape(L, -1)
        total_L1 = jnp.maximum(rows.weights.sum(axis=1, keepdims=True), 1)
        given = Given(
            jax.tree.map(lambda number: number.astype(jnp.float32), numbers),
            step_size_L,
            jnp.zeros(L, dtype=jnp.int32),
            padded.actions.astype(jnp.int32),
            padded.targets,
            2 * padded.weights / total_L1,
            self.update.corrections(learner.improver, self.steps),
        )
        changed = Changed(
            network.padded(learner.parameters, LOWEST),
            self.update.moments(network, learner.improver),
            jnp.zeros((L, network.size)),
            # The workspace begins with the network's inputs, which stay.
            jnp.pad(states, ((0, 0), (0, work.size - states.shape[1]))),
        )
        after = Changed(*for_each_agent(self._program, given, changed, **options))
        return learner._replace(
            parameters=network.cut(after.parameters),
            improver=self.update.after(network, learner.improver, after.moments, self.steps),
        )

    # The program of one agent; the arrays of `given` and `changed` are references to its part.

    def _program(self, given: Given, changed: Changed) -> None:
        numbers = Numbers(*(number[...] for number in given.numbers))
        numbers = numbers._replace(tanh=numbers.tanh != 0)
        step_size, clock = given.step_size[...], given.clock[...]
        B = given.targets.shape[0]
        work = Workspace(self.network, B)

        def step(number: Array, _: None) -> None:
            parameters, gradient, scratch, *moments = (
                Memory(reference, clock + number)
                for reference in (
                    changed.parameters,
                    changed.gradient,
                    changed.work,
                    *changed.moments,
                )
            )
            activations, gradients = work.activations(scratch), work.gradients(scratch)

            def some_rows(row: int | Array, rows: int, _: None) -> None:
                q_BA = forward(self.network, parameters, numbers, activations, row, rows)
                rows_B = row + jnp.arange(rows)
                actions_B, targets_B, shares_B = (
                    triton.load(part.at[rows_B])
                    for part in (given.actions, given.targets, given.shares)
                )
                chosen_BA = jnp.arange(q_BA.shape[1])[None] == actions_B[:, None]
                errors_B = jnp.where(chosen_BA, q_BA, 0.0).sum(axis=1) - targets_B
                slope_B = shares_B * errors_B
                gradients[-1].put(row, jnp.where(chosen_BA, slope_B[:, None], 0.0))
                barrier()
                backward(self.network, parameters, numbers, activations, gradients, row, rows)

            for_rows(B, some_rows)
            parameter_gradient(self.network, numbers, activations, gradients, gradient)
            self.update.apply(
                parameters,
                tuple(moments),
                gradient,
                step_size,
                numbers.improvement_max_grad_norm,
                given.corrections,
                number,
            )

        lax.fori_loop(0, self.steps, step, None)


def _grown(rows: Array, count: int) -> Array:
    """Add rows of zeros, which have weight 0, up to `count`."""
    return jnp.pad(rows, ((0, 0), (0, count - rows.shape[1]), *[(0, 0)] * (rows.ndim - 2)))

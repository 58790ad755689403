"""The arrays of a self-learning phase. Inside a kernel, they are references to one agent's part."""

from typing import NamedTuple

from fedhql.agents.dqn.kernels.matrices import Memory
from fedhql.agents.dqn.kernels.programs import Array, Part
from fedhql.agents.dqn.kernels.updates import Moments
from fedhql.agents.dqn.numbers import Numbers


class PhaseInputs(NamedTuple):
    """What a phase reads."""

    numbers: Numbers
    begin: Part  # (L,) env steps taken before this phase
    draws: Part  # (L, C, W)
    corrections: Part  # (L, C · G, 2) of Adam


class PhaseState(NamedTuple):
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

    def in_memory(self, clock: Array) -> "PhaseState":
        """Return the state with the vectors of training as `Memory`."""
        return self._replace(
            parameters=Memory(self.parameters, clock),
            target=Memory(self.target, clock),
            moments=tuple(Memory(moment, clock) for moment in self.moments),
            gradient=Memory(self.gradient, clock),
            work=Memory(self.work, clock),
        )

"""The black-box boundary: all that a server may ask of an agent, on one page.

Shape letters, used throughout: N agents, B states in a batch, A actions. `*obs` is the shape
of one observation: `(4,)` for CartPole, `()` for a Discrete observation space.
"""

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

States = NDArray[Any]  # (B, *obs), in the observation space's own dtype
Actions = NDArray[np.int64]  # (B,)
Values = NDArray[np.float32]  # (B,) or (B, A)


@runtime_checkable
class BlackBoxAgent(Protocol):
    """An agent with a private environment, network, optimiser, exploration rule and memory.

    The three methods below are the whole contract; nothing else about the agent is ever asked
    for. How it learns, and how hard it regresses in `improve`, is its own business.
    """

    def self_learn(self, env_steps: int) -> None:
        """Interact with the private environment for exactly `env_steps` steps, and learn."""

    def q_values(self, states: States) -> Values:
        """Action values Q(s, a) of every action at each state: (B, *obs) -> (B, A)."""

    def improve(self, states: States, actions: Actions, targets: Values) -> None:
        """Regress Q(states[i], actions[i]) towards targets[i]: (B, *obs), (B,), (B,)."""


@runtime_checkable
class Checkpointable(Protocol):
    """Optional: the agent's whole state to and from a directory, so that a killed run goes on.

    After `restore` the agent must behave bit for bit as the saved one would have.
    """

    def save(self, directory: Path) -> None: ...

    def restore(self, directory: Path) -> None: ...


@runtime_checkable
class Exportable(Protocol):
    """Optional: what the owner keeps of a trained agent (the policy, not its experience)."""

    def export(self, directory: Path) -> None: ...


@runtime_checkable
class Diagnosable(Protocol):
    """Optional: figures for the owner's own eyes (TensorBoard); they never reach a server."""

    def diagnostics(self) -> dict[str, float]: ...


@runtime_checkable
class Closable(Protocol):
    """Optional: release what the agent holds."""

    def close(self) -> None: ...

"""The black-box contract: everything that a server may ask of an agent.

Shape letters, used throughout: N agents, B states in a batch, A actions. `*obs` is the shape
of one observation: `(4,)` for CartPole, `()` for a Discrete observation space.
"""

from collections.abc import Callable
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

    The three methods below are the whole contract. The agent itself decides how it learns and how
    far it regresses in `improve`.
    """

    def self_learn(self, env_steps: int) -> None:
        """Interact with the private environment for exactly `env_steps` steps, and learn."""

    def q_values(self, states: States) -> Values:
        """Return Q(s, a) of every action at each state: (B, *obs) -> (B, A)."""

    def improve(self, states: States, actions: Actions, targets: Values) -> None:
        """Regress Q(states[i], actions[i]) towards targets[i]: (B, *obs), (B,), (B,)."""


@runtime_checkable
class Acting(Protocol):
    """Optional: how the agent itself would act. Evaluations and `fedhql play` use it.

    An agent without it acts greedily: it takes the action with the largest of its `q_values`.
    """

    def act(self, states: States) -> Actions:
        """Return the action that the agent takes at each state when it does not explore: (B,)."""


@runtime_checkable
class Checkpointable(Protocol):
    """Optional: save and restore the agent's whole state, so that a killed run can resume.

    After `restore` the agent must behave bit for bit as the saved one would have.
    """

    def save(self, directory: Path) -> None: ...

    def restore(self, directory: Path) -> None: ...


@runtime_checkable
class Exportable(Protocol):
    """Optional: export the trained policy, which the owner keeps, without the experience."""

    def export(self, directory: Path) -> None: ...


@runtime_checkable
class Diagnosable(Protocol):
    """Optional: figures for the agent's owner (--track); no server receives them."""

    def diagnostics(self) -> dict[str, float]: ...


@runtime_checkable
class Closable(Protocol):
    """Optional: release the agent's resources."""

    def close(self) -> None: ...


def keeping(agent: object) -> Callable[[Path], None] | None:
    """Return what writes the files that an owner keeps: export, or else save; None without both."""
    if isinstance(agent, Exportable):
        return agent.export
    return agent.save if isinstance(agent, Checkpointable) else None

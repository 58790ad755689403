"""A cohort whose agents have one owner, who can also save, restore and export them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedhql.acting import GreedyAnswer
from fedhql.contract import BlackBoxAgent, Checkpointable, Diagnosable, States, keeping
from fedhql.federation import InProcessCohort, PlainCohort
from fedhql.settings.sections import ExperimentSettings


class OwnedCohort(PlainCohort, Protocol):
    """A cohort whose agents all belong to one owner, in any process."""

    def act_each(self, states: Sequence[States]) -> Sequence[GreedyAnswer]:
        """Ask agent n for its action values at states[n] and how it acts there."""

    @property
    def can_be_saved(self) -> bool:
        """Whether every agent can be saved, so that the cell can resume from a checkpoint."""

    def save(self, directory: Path) -> None:
        """Write every agent's whole state, each into a new directory with the agent's name."""

    def restore(self, directory: Path) -> None: ...

    def can_be_kept(self, n: int) -> bool: ...

    def keep(self, n: int, directory: Path) -> None:
        """Write what the owner keeps of agent n: its export, or else its whole state."""

    def diagnostics(self) -> list[dict[str, float]]: ...


# Takes settings, a seed, and a function to call with the env steps that an agent has learned.
Gather = Callable[[ExperimentSettings, int, Callable[[int], None]], OwnedCohort]
# Takes settings, a seed and n. Returns a new agent n; None if only its owner has one.
Build = Callable[[ExperimentSettings, int, int], BlackBoxAgent | None]


@dataclass(frozen=True)
class AgentSource:
    """Where the agents of a cell come from: the cohort, and one more agent to play kept states."""

    gather: Gather
    build: Build


class LocalOwnedCohort(InProcessCohort):
    """Agents as objects in this process."""

    @property
    def can_be_saved(self) -> bool:
        return all(isinstance(agent, Checkpointable) for agent in self._agents)

    def save(self, directory: Path) -> None:
        for agent, name in zip(self._agents, self.names, strict=True):
            assert isinstance(agent, Checkpointable)  # can_be_saved was checked
            (directory / name).mkdir()
            agent.save(directory / name)

    def restore(self, directory: Path) -> None:
        for agent, name in zip(self._agents, self.names, strict=True):
            assert isinstance(agent, Checkpointable)  # else no checkpoint was written
            agent.restore(directory / name)

    def can_be_kept(self, n: int) -> bool:
        return keeping(self._agents[n]) is not None

    def keep(self, n: int, directory: Path) -> None:
        if (write := keeping(self._agents[n])) is not None:
            write(directory)

    def diagnostics(self) -> list[dict[str, float]]:
        return [
            agent.diagnostics() if isinstance(agent, Diagnosable) else {} for agent in self._agents
        ]

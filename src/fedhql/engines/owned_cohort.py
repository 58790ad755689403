"""The agents of one cell: a cohort for the server, and what their owner keeps of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from fedhql.contract import Checkpointable, Diagnosable, Exportable
from fedhql.federation import Cohort, InProcessCohort
from fedhql.settings.sections import ExperimentSettings


class OwnedCohort(Cohort, Protocol):
    """A cohort whose agents are all of one owner, wherever they live."""

    @property
    def can_be_saved(self) -> bool:
        """Whether every agent can, so that the whole cell can go on from a checkpoint."""

    def save(self, directory: Path) -> None:
        """Every agent's whole state, each into a new directory of its name."""

    def restore(self, directory: Path) -> None: ...

    def can_be_kept(self, n: int) -> bool: ...

    def keep(self, n: int, directory: Path) -> None:
        """What its owner keeps of agent n: what it exports, or all of it."""

    def diagnostics(self) -> list[dict[str, float]]: ...


# Settings, a seed, and what to call after each agent's self-learning, with its steps.
Gather = Callable[[ExperimentSettings, int, Callable[[int], None]], OwnedCohort]


class LocalOwnedCohort(InProcessCohort):
    """Agents as objects in this process."""

    @property
    def can_be_saved(self) -> bool:
        return all(isinstance(agent, Checkpointable) for agent in self._agents)

    def save(self, directory: Path) -> None:
        for agent, name in zip(self._agents, self.names, strict=True):
            assert isinstance(agent, Checkpointable)  # can_be_saved says so
            (directory / name).mkdir()
            agent.save(directory / name)

    def restore(self, directory: Path) -> None:
        for agent, name in zip(self._agents, self.names, strict=True):
            assert isinstance(agent, Checkpointable)  # else no checkpoint was written
            agent.restore(directory / name)

    def can_be_kept(self, n: int) -> bool:
        return isinstance(self._agents[n], Exportable | Checkpointable)

    def keep(self, n: int, directory: Path) -> None:
        agent = self._agents[n]
        if isinstance(agent, Exportable):
            agent.export(directory)
        elif isinstance(agent, Checkpointable):
            agent.save(directory)

    def diagnostics(self) -> list[dict[str, float]]:
        return [
            agent.diagnostics() if isinstance(agent, Diagnosable) else {} for agent in self._agents
        ]

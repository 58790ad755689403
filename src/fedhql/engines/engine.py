"""The interface of an engine, which checks an experiment and plans the parts of its run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedhql.engines.work import Agents, Executor, Work
from fedhql.errors import FedHQLError
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.run_directory import Cell, RunDirectory


@dataclass(frozen=True)
class DeviceFacts:
    """What the try-out of an experiment found in its process."""

    is_cpu: bool = True
    memory_bytes: int = 0  # of the device
    observation_size: int = 0  # numbers in an observation of the environment


@dataclass(frozen=True)
class Recording:
    """The clock of a run's parts, and the tools that they also write to (storage.tracking)."""

    clock: Callable[[], float]
    track: Sequence[str]


class Engine(Protocol):
    """One way to compute a run; see `choice.ENGINES`."""

    @property
    def needs_facts(self) -> bool:
        """Whether `plan` needs the facts of a try-out each time, not only before a new run."""

    @property
    def places_agents(self) -> bool:
        """Whether the agents of a cell are objects that may live on other machines."""

    def why_not(self, settings: ExperimentSettings) -> FedHQLError | None:
        """Return why this engine cannot run the experiment; None if it can."""

    def usually_runs(self, settings: ExperimentSettings) -> bool:
        """Whether users expect this engine; if so, they are warned when another one runs."""

    def modules(self, settings: ExperimentSettings) -> list[str]:
        """Return the modules that take the processes of such a run longest to load."""

    def try_out(self, settings: ExperimentSettings, agents: Agents) -> DeviceFacts:
        """Build what a run needs, in a process of its own, so that mistakes show before the run."""

    def plan(
        self,
        settings: ExperimentSettings,
        directory: RunDirectory,
        left: Sequence[Cell],
        executor: Executor,
        *,
        facts: DeviceFacts,
        recording: Recording,
    ) -> list[Work]:
        """Divide the cells that are left into parts for the executor."""

"""The parts of a run, and the interface of an executor that runs them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from fedhql.engines.owned_cohort import AgentSource
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.run_directory import Cell, RunDirectory

Send = Callable[[Any], None]
# Entered in the process that runs the cell.
Agents = Callable[[], AbstractContextManager[AgentSource]]


@dataclass(frozen=True)
class Work:
    """A part of a run. It is picklable, so another process or machine can run it."""

    do: Callable[[RunDirectory, Send], None]
    cells: Sequence[Cell] = ()
    checkpoints: str = ""  # their path in the run directory
    on_gpu: bool = False
    modules: Sequence[str] = ()  # to be loaded once for all processes of a machine


class Executor(Protocol):
    """Runs the parts of a run, in local processes or on a cluster."""

    @property
    def agents(self) -> Agents: ...

    def facts(self) -> dict[str, Any]:
        """Return what the manifest says about the executor."""

    def capacity(self, settings: ExperimentSettings, *, on_cpu: bool) -> tuple[int, int]:
        """Return how many parts run side by side, and how many memories they share."""

    def run(
        self, work: Sequence[Work], jobs: int, directory: RunDirectory, on_message: Send
    ) -> None: ...

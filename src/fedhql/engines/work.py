"""The parts of a run, and what an executor of them must offer."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from fedhql.engines.owned_cohort import Gather
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.run_directory import Cell, RunDirectory

Send = Callable[[Any], None]
Agents = Callable[[], AbstractContextManager[Gather]]  # entered where the cell runs


@dataclass(frozen=True)
class Work:
    """A part of a run. Picklable: it may be done in another process, or on another machine."""

    do: Callable[[RunDirectory, Send], None]
    cells: Sequence[Cell] = ()
    checkpoints: str = ""  # where they are in the run directory
    on_gpu: bool = False


class Executor(Protocol):
    """Somewhere to work."""

    @property
    def agents(self) -> Agents: ...

    def facts(self) -> dict[str, Any]:
        """For the manifest."""

    def capacity(self, settings: ExperimentSettings, *, on_cpu: bool) -> tuple[int, int]:
        """How many parts run side by side, and how many memories they share."""

    def run(
        self, work: Sequence[Work], jobs: int, directory: RunDirectory, on_message: Send
    ) -> None: ...

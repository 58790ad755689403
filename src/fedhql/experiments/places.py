"""Where the work of a run is done; here: in processes of this machine."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from fedhql.experiments.crew import Gather
from fedhql.experiments.processes import run_in_processes
from fedhql.experiments.settings import ExperimentSettings
from fedhql.results.run_directory import Cell, RunDirectory

Send = Callable[[Any], None]
Agents = Callable[[], AbstractContextManager[Gather]]  # entered where the cell runs


@dataclass(frozen=True)
class Work:
    """A part of a run. Picklable: it may be done in another process, or on another machine."""

    do: Callable[[RunDirectory, Send], None]
    cells: Sequence[Cell] = ()
    checkpoints: str = ""  # where they are in the run directory
    on_gpu: bool = False


class Place(Protocol):
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


@contextmanager
def agents_here() -> Iterator[Gather]:
    from fedhql.experiments.build import gather_here

    yield gather_here


@dataclass(frozen=True)
class Here:
    """Processes of this machine."""

    jobs: int
    agents: Agents = agents_here

    def facts(self) -> dict[str, Any]:
        return {}

    def capacity(self, settings: ExperimentSettings, *, on_cpu: bool) -> tuple[int, int]:
        return (self.jobs if on_cpu else 1), 1  # a GPU is filled by one program

    def run(
        self, work: Sequence[Work], jobs: int, directory: RunDirectory, on_message: Send
    ) -> None:
        run_in_processes([partial(part.do, directory) for part in work], jobs, on_message)

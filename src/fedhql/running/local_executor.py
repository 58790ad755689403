"""Run the parts of a run in processes on this machine."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedhql.engines.owned_cohort import Gather
from fedhql.engines.work import Agents, Send, Work
from fedhql.running.worker_processes import run_in_processes
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.run_directory import RunDirectory


@contextmanager
def agents_here() -> Iterator[Gather]:
    from fedhql.engines.build import gather_here

    yield gather_here


@dataclass(frozen=True)
class LocalExecutor:
    """Runs parts in `jobs` processes on this machine."""

    jobs: int
    agents: Agents = agents_here

    def facts(self) -> dict[str, Any]:
        return {}

    def capacity(self, settings: ExperimentSettings, *, on_cpu: bool) -> tuple[int, int]:
        return (self.jobs if on_cpu else 1), 1  # one program fills a GPU

    def run(
        self, work: Sequence[Work], jobs: int, directory: RunDirectory, on_message: Send
    ) -> None:
        modules = sorted({module for part in work for module in part.modules})
        tasks = [partial(part.do, directory) for part in work]
        run_in_processes(tasks, jobs, on_message, modules)

"""Run the parts of a run on this machine: in processes, or one after the other in this one."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedhql.engines.owned_cohort import AgentSource
from fedhql.engines.work import Agents, Send, Work
from fedhql.running.worker_processes import run_in_processes
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.run_directory import RunDirectory


@contextmanager
def agents_here() -> Iterator[AgentSource]:
    from fedhql.engines.build import gather_here
    from fedhql.engines.build_agent import build_one_agent

    yield AgentSource(gather_here, build_one_agent)


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


@dataclass(frozen=True)
class InProcessExecutor:
    """Runs one part after the other in this process, whose objects may be the agents."""

    agents: Agents = agents_here

    def facts(self) -> dict[str, Any]:
        return {}

    def capacity(self, settings: ExperimentSettings, *, on_cpu: bool) -> tuple[int, int]:
        return 1, 1

    def run(
        self, work: Sequence[Work], jobs: int, directory: RunDirectory, on_message: Send
    ) -> None:
        for part in work:
            part.do(directory, on_message)

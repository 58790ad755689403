"""Executors on a Ray cluster: a cell's agents as actors, or whole cells and grids as tasks."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fedhql.cluster.agent_host import write_files
from fedhql.cluster.file_transfer import FileSender, scratch
from fedhql.cluster.resources import Resources
from fedhql.cluster.session import Cluster, connected
from fedhql.engines.cell_records import Progress
from fedhql.engines.owned_cohort import AgentSource, OwnedCohort
from fedhql.engines.work import Agents, Send, Work
from fedhql.errors import ClusterError, FedHQLError
from fedhql.running.local_executor import LocalExecutor, agents_here
from fedhql.running.worker_processes import WorkerDied, WorkerFailed, messages_of
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.run_directory import RunDirectory
from fedhql.storage.tracking import TRACKERS

PROGRESS_SECONDS = 0.25  # between two progress messages, which go over the network


def resources_of(settings: ExperimentSettings) -> list[Resources]:
    return [agent.resources or Resources() for agent in settings.agents]


class RayActorExecutor:
    """Runs each cell in a process on this machine, with its agents as actors on the cluster."""

    def __init__(self, cluster: Cluster, jobs: int) -> None:
        self._cluster = cluster
        self.agents: Agents = partial(_agents_on_ray, cluster.address)
        self._local = LocalExecutor(jobs, self.agents)

    def facts(self) -> dict[str, Any]:
        return {"ray": self._cluster.facts()}

    def capacity(self, settings: ExperimentSettings, *, on_cpu: bool) -> tuple[int, int]:
        jobs, memories = self._local.capacity(settings, on_cpu=on_cpu)
        return self._cluster.cohorts_at_once(resources_of(settings), at_most=jobs), memories

    def run(
        self, work: Sequence[Work], jobs: int, directory: RunDirectory, on_message: Send
    ) -> None:
        self._local.run(work, jobs, directory, on_message)


@contextmanager
def _agents_on_ray(address: str) -> Iterator[AgentSource]:
    from fedhql.engines.build_agent import build_one_agent

    with connected(address) as cluster:
        yield AgentSource(partial(gather_on_ray, cluster), build_one_agent)


def gather_on_ray(
    cluster: Cluster,
    settings: ExperimentSettings,
    seed: int,
    on_self_learned: Callable[[int], None],
) -> OwnedCohort:
    from fedhql.cluster.ray_cohort import RayCohort
    from fedhql.engines.build import first_states

    states, actions = first_states(settings)
    cohort = RayCohort(
        [partial(_build, settings, seed, n) for n in range(len(settings.agents))],
        actions,
        names=settings.agent_names,
        resources=resources_of(settings),
        versions=cluster.versions,
        on_self_learned=on_self_learned,
    )
    cohort.act_each([states] * len(settings.agents))  # reports a wrong answer before any work
    return cohort


def _build(settings: ExperimentSettings, seed: int, n: int) -> Any:
    """Build an agent in its actor."""
    from fedhql.engines.build_agent import build_one_agent
    from fedhql.engines.jax_setup import prepare_jax

    prepare_jax(shares_device=True)
    return build_one_agent(settings, seed, n)


class RayTaskExecutor:
    """Runs cells and grids as Ray tasks. Each task takes one core or one GPU."""

    agents: Agents = staticmethod(agents_here)

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster, self._clock = cluster, clock

    def facts(self) -> dict[str, Any]:
        return {"ray": self._cluster.facts()}

    def capacity(self, settings: ExperimentSettings, *, on_cpu: bool) -> tuple[int, int]:
        gpus = int(self._cluster.total("GPU"))
        if not on_cpu:
            return gpus, gpus  # each GPU has its own memory
        cpus = [int(node.get("CPU", 0)) for node in self._cluster.nodes()]
        if not sum(cpus):
            raise ClusterError("no node of the cluster offers a CPU; at least one is needed")
        return sum(cpus), sum(1 for count in cpus if count)

    def run(
        self, work: Sequence[Work], jobs: int, directory: RunDirectory, on_message: Send
    ) -> None:
        """Run the parts. Ignore `jobs`: Ray decides how many tasks run at a time."""
        from fedhql.cluster.tasks import Task, run_tasks

        tasks = [
            Task(
                f"part {number} of {len(work)}",
                partial(_messages, part, directory.name, self._clock),
                _paths(part, directory),
                {"num_cpus": 0, "num_gpus": 1} if part.on_gpu else {"num_cpus": 1, "num_gpus": 0},
            )
            for number, part in enumerate(work, start=1)
        ]

        def take(message: Any) -> None:
            for each in message if isinstance(message, list) else [message]:
                on_message(each)

        run_tasks(tasks, directory.path, self._cluster.versions, take)


def _paths(work: Work, directory: RunDirectory) -> list[str]:
    """Return the paths in the run directory that a part reads and writes."""
    paths = [
        path
        for cell in work.cells
        for path in (
            directory.cell(cell),
            directory.agent(cell, ""),
            *(directory.tracked(cell, tool) for tool in TRACKERS),
        )
    ]
    homes = [work.checkpoints] if work.checkpoints else []
    return [path.relative_to(directory.path).as_posix() for path in paths] + homes


def _messages(
    work: Work, run: str, clock: Callable[[], float], files: dict[str, bytes]
) -> Iterator[Any]:
    """Run a part in a child process of the Ray worker, and yield its messages."""
    from fedhql.cluster.tasks import Lost

    try:
        yield from messages_of([partial(_in_scratch, work, run, clock, files)], 1)
    except WorkerDied as error:
        yield Lost(str(error))
    except (FedHQLError, WorkerFailed) as error:
        yield error


def _in_scratch(
    work: Work, run: str, clock: Callable[[], float], files: dict[str, bytes], send: Send
) -> None:
    """Run a part of the named run in a scratch directory, and send its files and messages."""
    with scratch("fedhql-task-", Path(tempfile.gettempdir())) as home:
        write_files(home, files)
        sender = FileSender(home, send, clock)
        outbox = _Outbox(send, clock)

        def report(message: Any) -> None:
            outbox.put(message)
            sender.send_if_due()

        try:
            work.do(RunDirectory(home, run), report)
        finally:
            outbox.flush()
            sender.send()


class _Outbox:
    """Sends messages every PROGRESS_SECONDS, with only the newest progress of each cell."""

    def __init__(self, send: Send, clock: Callable[[], float]) -> None:
        self._send, self._clock = send, clock
        self._waiting: dict[Any, Any] = {}
        self._next_due = clock()

    def put(self, message: Any) -> None:
        key = message.cell if isinstance(message, Progress) else len(self._waiting)
        self._waiting[key] = message
        if self._clock() >= self._next_due:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._send(list(self._waiting.values()))
        self._waiting = {}
        self._next_due = self._clock() + PROGRESS_SECONDS

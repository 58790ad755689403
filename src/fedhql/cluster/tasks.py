"""Work as Ray tasks: anywhere on the cluster, with its files here; lost, it goes on elsewhere."""

import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from fedhql.cluster.file_transfer import FileReceiver, Parcel, files_below
from fedhql.cluster.versions import require_versions
from fedhql.errors import ClusterError, FedHQLError

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 60.0  # until somebody is told that tasks wait for a place
MOST_LOSSES = 5  # of one task, with no new checkpoint in between
ARRIVING = ".arriving"  # in the run directory: files that are not complete yet
BUFFERED_MESSAGES = 16  # of a task, before it waits for us


@dataclass(frozen=True)
class Task:
    """Something to do with some parts of a run directory, which are brought to it."""

    name: str
    # Called where the task runs with the files it begins with; what it gives are messages.
    messages: Callable[[dict[str, bytes]], Iterator[Any]]
    parts: Sequence[str] = ()
    options: dict[str, Any] = field(default_factory=dict)  # Ray's: num_cpus, num_gpus


class _Finished:
    """A task's last message."""


@dataclass(frozen=True)
class Lost:
    """A task's last message, if its work was ended from outside and may be tried elsewhere."""

    why: str


def run_tasks(
    tasks: Sequence[Task],
    home: Path,
    versions: dict[str, str],
    on_message: Callable[[Any], None],
) -> None:
    """Run all, as many at a time as there is room for, also on nodes that join meanwhile.

    The first failure ends them all and is raised. A node or process that is lost is no failure: its
    task begins again with the files that have arrived.
    """
    running: dict[Any, _Running] = {}

    def start(each: _Running) -> None:
        running[each.start(versions)] = each

    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home / ARRIVING, ignore_errors=True)
        stack.callback(lambda: [ray.cancel(stream, force=True) for stream in running])
        for number, task in enumerate(tasks):
            start(_Running(task, home, home / ARRIVING / str(number)))
        if running and not ray.wait(list(running), timeout=PATIENCE_SECONDS)[0]:
            log.warning(
                "no task has begun yet: no node has room for one; a node that joins is used"
            )
        while running:
            ready, _ = ray.wait(list(running))
            stream: Any = ready[0]
            match message := _next(stream):
                case _Finished():
                    del running[stream]
                case Lost(why):
                    lost = running.pop(stream)
                    lost.note_loss(why)
                    start(lost)
                case Parcel():
                    running[stream].receive(message)
                case BaseException():
                    raise message
                case _:
                    on_message(message)


class _Running:
    """A task, through all its attempts."""

    def __init__(self, task: Task, home: Path, aside: Path) -> None:
        self._task, self._home, self._aside = task, home, aside
        self._losses = 0

    def start(self, versions: dict[str, str]) -> Any:
        """-> the stream of its messages."""
        files = files_below(self._home, self._task.parts)
        self._receiver = FileReceiver(self._home, self._aside, files)
        remote = ray.remote(max_retries=0, num_returns="streaming")(_run_one)
        options = self._task.options | {
            "scheduling_strategy": "SPREAD",
            "_generator_backpressure_num_objects": BUFFERED_MESSAGES,
        }
        return remote.options(**options).remote(self._task.messages, files, versions)

    def receive(self, parcel: Parcel) -> None:
        if self._receiver.receive(parcel):
            self._losses = 0

    def note_loss(self, why: str) -> None:
        self._losses += 1
        if self._losses == MOST_LOSSES:
            raise FedHQLError(
                f"{self._task.name} was lost {MOST_LOSSES} times without getting any further, the "
                f"last time: {why}; go on with --resume"
            )
        log.warning("%s was lost (%s) and goes on elsewhere", self._task.name, why)


def _next(stream: Any) -> Any:
    """A task's next message; what becomes of its node or its process is one, too."""
    try:
        return ray.get(next(stream))
    except StopIteration:
        return Lost("it ended without a word")  # else the message before was its last
    except RayTaskError as error:  # before our own code was there to catch it
        return ClusterError(f"a node cannot run a task: {error.cause}")
    except RayError as error:
        return Lost(type(error).__name__)


def _run_one(
    messages: Callable[[dict[str, bytes]], Iterator[Any]],
    files: dict[str, bytes],
    versions: dict[str, str],
) -> Iterator[Any]:
    """In a Ray worker. What goes wrong in the work is a message: an exception is Ray's own."""
    try:
        require_versions(versions)
    except FedHQLError as error:
        yield error
        return
    with closing(messages(files)) as stream:  # type: ignore[type-var]  # generators can be closed
        yield from stream
    yield _Finished()

"""Run work as Ray tasks on any node and collect its files here; restart tasks that are lost."""

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
from fedhql.errors import RESUME, ClusterError, FedHQLError

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 60.0  # before a warning says that no task has started
MOST_LOSSES = 5  # of one task, without a new checkpoint in between
ARRIVING = ".arriving"  # staging directory inside the run directory
BUFFERED_MESSAGES = 16  # of one task, before it waits for the driver


@dataclass(frozen=True)
class Task:
    """Work on some parts of a run directory, which are copied to the node that runs it."""

    name: str
    # Called on the node with the files to start from; returns an iterator of messages.
    messages: Callable[[dict[str, bytes]], Iterator[Any]]
    parts: Sequence[str] = ()
    options: dict[str, Any] = field(
        default_factory=dict
    )  # Ray's options, such as num_cpus and num_gpus


class _Finished:
    """The last message of a task that has finished."""


@dataclass(frozen=True)
class Lost:
    """The last message of a task that was ended from outside and may be tried again."""

    why: str


def run_tasks(
    tasks: Sequence[Task],
    home: Path,
    versions: dict[str, str],
    on_message: Callable[[Any], None],
) -> None:
    """Run all tasks, as many at a time as the nodes have room for. Nodes may join meanwhile.

    The first failure ends all tasks and is raised. The loss of a node or process is no failure: its
    task starts again from the files that have arrived.
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
                "no task has started yet: no node has room for one; a node that joins will be used"
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
    """A task with all its attempts."""

    def __init__(self, task: Task, home: Path, staging: Path) -> None:
        self._task, self._home, self._staging = task, home, staging
        self._losses = 0

    def start(self, versions: dict[str, str]) -> Any:
        """Start an attempt; return the stream of its messages."""
        files = files_below(self._home, self._task.parts)
        self._receiver = FileReceiver(self._home, self._staging, files)
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
                f"{self._task.name} was lost {MOST_LOSSES} times without a new checkpoint, "
                f"the last time: {why}; continue with {RESUME}"
            )
        log.warning(
            "%s was lost (%s) and starts again from the files that have arrived",
            self._task.name,
            why,
        )


def _next(stream: Any) -> Any:
    """Return the next message of a task: `Lost` or an error if its node or process failed."""
    try:
        return ray.get(next(stream))
    except StopIteration:
        return Lost("it ended without a last message")
    except RayTaskError as error:  # raised before our own code could catch it
        return ClusterError(f"a node cannot run a task: {error.cause}")
    except RayError as error:
        return Lost(type(error).__name__)


def _run_one(
    messages: Callable[[dict[str, bytes]], Iterator[Any]],
    files: dict[str, bytes],
    versions: dict[str, str],
) -> Iterator[Any]:
    """Yield the messages of a task, in a Ray worker.

    Errors of the task are messages, so that an exception always comes from Ray.
    """
    try:
        require_versions(versions)
    except FedHQLError as error:
        yield error
        return
    with closing(messages(files)) as stream:  # type: ignore[type-var]  # generators can be closed
        yield from stream
    yield _Finished()

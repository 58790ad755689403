"""Cells side by side, each in a process of its own that dies with this one."""

import logging
import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from fedhql.errors import FedHQLError

Task = Callable[[Callable[[Any], None]], None]  # called with a way to send messages


class WorkerFailed(Exception):
    """A task died of a defect, ours or an agent's; its traceback is the message."""


def run_in_processes(tasks: Sequence[Task], jobs: int, on_message: Callable[[Any], None]) -> None:
    """Run picklable tasks, `jobs` at a time; the first failure stops them all and is raised."""
    waiting = list(tasks)
    running: dict[Connection, SpawnProcess] = {}
    with _all_ended(running):
        while waiting or running:
            while waiting and len(running) < jobs:
                receiver, process = _start(waiting.pop(0))
                running[receiver] = process
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                try:
                    message = ready.recv()
                except EOFError:
                    _require_clean_exit(running.pop(ready))
                    continue
                if isinstance(message, BaseException):
                    raise message
                on_message(message)


def _start(task: Task) -> tuple[Connection, SpawnProcess]:
    # Spawned, not forked: torch and JAX do not survive a fork of a process with threads.
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(task, sender))
    process.start()
    sender.close()  # so that the worker's death shows as an end of file here
    return receiver, process


def _work(task: Task, sender: Connection) -> None:
    """The worker's main: one numeric thread, no life without its parent."""
    # Cells are what runs in parallel; and sums must not depend on how many threads there are.
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    threading.Thread(target=_die_with_parent, daemon=True).start()
    logging.getLogger("fedhql").addHandler(_SendingHandler(sender))
    try:
        task(sender.send)
    except KeyboardInterrupt:
        pass  # the parent was interrupted too, and says so
    except FedHQLError as error:
        sender.send(error)
    except Exception:  # noqa: BLE001 - it is raised again, in the parent
        sender.send(WorkerFailed(traceback.format_exc()))


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


class _SendingHandler(logging.Handler):
    def __init__(self, sender: Connection) -> None:
        super().__init__(logging.WARNING)
        self._sender = sender

    def emit(self, record: logging.LogRecord) -> None:
        self._sender.send(record)


def _require_clean_exit(process: SpawnProcess) -> None:
    process.join()
    if process.exitcode:
        raise FedHQLError(
            f"a worker process ended with exit code {process.exitcode} (negative: killed by that "
            "signal; -9 is often a lack of memory); go on with --resume"
        )


@contextmanager
def _all_ended(running: dict[Connection, SpawnProcess]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.join()

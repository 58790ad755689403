"""Cells side by side, each in a process of its own that dies with this one."""

import logging
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from fedhql.errors import FedHQLError
from fedhql.threads import ONE_THREAD

Task = Callable[[Callable[[Any], None]], None]  # called with a way to send messages


class WorkerFailed(Exception):
    """A task died of a defect, ours or an agent's; its traceback is the message."""


class _Done:
    """A worker's last message, if it got through its task."""


class WorkerDied(FedHQLError):
    """A worker's process was ended from outside."""


def run_in_processes(tasks: Sequence[Task], jobs: int, on_message: Callable[[Any], None]) -> None:
    """Run picklable tasks, `jobs` at a time; the first failure stops them all and is raised."""
    for message in messages_of(tasks, jobs):
        on_message(message)


def messages_of(tasks: Sequence[Task], jobs: int) -> Iterator[Any]:
    """The same, for whoever would rather ask for the messages; closed early, it ends them all."""
    waiting = list(tasks)
    running: dict[Connection, SpawnProcess] = {}
    with _all_ended(running):
        while waiting or running:
            while waiting and len(running) < jobs:
                _start(waiting.pop(0), running)
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                try:
                    message = ready.recv()
                except (EOFError, OSError):  # OSError: killed in the middle of a message
                    raise _died(running[ready]) from None
                if isinstance(message, BaseException):
                    raise message
                if isinstance(message, _Done):
                    running.pop(ready).join()
                else:
                    yield message


def _start(task: Task, running: dict[Connection, SpawnProcess]) -> None:
    # Spawned, not forked: torch and JAX do not survive a fork of a process with threads.
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(task, sender))
    with _as_workers_start():  # no interrupt can come between its start and our knowing of it
        process.start()
        running[receiver] = process
    sender.close()  # so that the worker's death shows as an end of file here


@contextmanager
def _as_workers_start() -> Iterator[None]:
    """What a new process inherits: one numeric thread, and deafness to Ctrl-C.

    Libraries read the thread variables when they are loaded, so they must be there before. Cells
    are what runs in parallel, and sums must not depend on how many threads there are. An interrupt
    is for the parent, which ends its workers; theirs would be a traceback each.
    """
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    # The mask is what the worker inherits. It keeps an interrupt from this thread alone; another
    # may take it, so until the worker has all it needs an interrupt is only written down.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    heard: list[int] = []
    listener = signal.getsignal(signal.SIGINT)
    if callable(listener):  # else interrupts are ignored, and shall be
        signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, listener)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    if heard:
        raise KeyboardInterrupt


def _work(task: Task, sender: Connection) -> None:
    """The worker's main. It has no life without its parent."""

    def send(message: object) -> None:
        try:
            sender.send(message)
        except BrokenPipeError:
            os._exit(1)  # the parent is gone

    threading.Thread(target=_die_with_parent, daemon=True).start()
    logging.getLogger("fedhql").addHandler(_SendingHandler(send))
    try:
        task(send)
        send(_Done())
    except FedHQLError as error:
        send(error)
    except Exception:  # noqa: BLE001 - it is raised again, in the parent
        send(WorkerFailed(traceback.format_exc()))


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


class _SendingHandler(logging.Handler):
    def __init__(self, send: Callable[[object], None]) -> None:
        super().__init__(logging.WARNING)
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        self._send(record)


def _died(process: SpawnProcess) -> WorkerDied:
    process.join()
    return WorkerDied(
        f"a worker process ended before its work did, with exit code {process.exitcode} (negative: "
        "killed by that signal; -9 is often a lack of memory); go on with --resume"
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

"""Run tasks side by side, each in its own process, which dies with this one."""

import logging
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from types import ModuleType
from typing import Any

from fedhql.errors import RESUME, FedHQLError
from fedhql.threads import ONE_THREAD

Task = Callable[[Callable[[Any], None]], None]  # called with a function that sends messages


class WorkerFailed(Exception):
    """A task raised an unexpected exception. The message is its traceback."""


class _Done:
    """The last message of a worker that has finished its task."""


class WorkerDied(FedHQLError):
    """A worker process ended before its task did."""


def run_in_processes(
    tasks: Sequence[Task],
    jobs: int,
    on_message: Callable[[Any], None],
    modules: Sequence[str] = (),
) -> None:
    """Run picklable tasks, `jobs` at a time. The first failure stops all tasks and is raised.

    The first call starts a process that imports `modules`, and all workers are forks of it: they
    share what is loaded. That process has no threads; torch and JAX start theirs in the workers.
    """
    for message in messages_of(tasks, jobs, modules):
        on_message(message)


def messages_of(tasks: Sequence[Task], jobs: int, modules: Sequence[str] = ()) -> Iterator[Any]:
    """Run tasks as `run_in_processes` does, and yield their messages. Closing ends all tasks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *modules])
    waiting = list(tasks)
    running: dict[Connection, ForkServerProcess] = {}
    with _all_ended(running):
        while waiting or running:
            while waiting and len(running) < jobs:
                _start(context, waiting.pop(0), running)
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


def _start(
    context: ForkServerContext, task: Task, running: dict[Connection, ForkServerProcess]
) -> None:
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(task, sender))
    with _as_workers_start():  # no interrupt comes between the start and the entry
        process.start()
        running[receiver] = process
    sender.close()  # so that we read an end of file when the worker dies


@contextmanager
def _as_workers_start() -> Iterator[None]:
    """Set what a new process inherits: one numeric thread, Ctrl-C blocked, no main module.

    A worker would run the user's script again to have its main module, and a script without
    `if __name__ == "__main__"` would then start a run of its own. No task needs that module.

    Libraries read the thread variables when they are loaded, so the variables must be set before.
    Tasks run in parallel, and sums must not depend on the number of threads. The parent handles
    an interrupt and ends its workers; otherwise each worker would print a traceback.
    """
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    # The worker inherits the mask. The mask blocks interrupts in this thread only, and another
    # thread may get one. So an interrupt is only recorded until the worker has started.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    interrupts: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()  # only it has handlers
    if in_main_thread and callable(handler):  # else interrupts are ignored and stay so
        signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    os.environ.update(ONE_THREAD)
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if in_main_thread:
            signal.signal(signal.SIGINT, handler)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    if interrupts:
        raise KeyboardInterrupt


def _work(task: Task, sender: Connection) -> None:
    """Run a task in a worker process, which exits when its parent is gone."""

    def send(message: object) -> None:
        try:
            sender.send(message)
        except BrokenPipeError:
            os._exit(1)  # the parent is gone

    # The inherited mask blocks interrupts, and still a worker once printed a traceback at Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    logging.getLogger("fedhql").addHandler(_SendingHandler(send))
    try:
        task(send)
        send(_Done())
    except FedHQLError as error:
        send(error)
    except Exception:  # noqa: BLE001 - the parent raises it again
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


def _died(process: ForkServerProcess) -> WorkerDied:
    process.join()
    return WorkerDied(
        f"a worker process ended before its task, with exit code {process.exitcode} (negative: "
        f"killed by that signal; -9 often means too little memory); go on with {RESUME}"
    )


@contextmanager
def _all_ended(running: dict[Connection, ForkServerProcess]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.join()

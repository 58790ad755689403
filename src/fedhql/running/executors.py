"""Choose the executor of a run: processes on this machine, this process, or a Ray cluster."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedhql.cluster.session import Cluster, connected
from fedhql.engines.work import Executor
from fedhql.errors import SettingsError
from fedhql.running.local_executor import InProcessExecutor, LocalExecutor

LOCAL, RAY = "local", "ray"
EXECUTORS = (LOCAL, RAY)


def cores() -> int:
    """Return the number of cores that this process may use; on macOS, the number of all cores."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def executor_on(
    on: str, address: str | None, jobs: int | None, on_ray: Callable[[Cluster], Executor]
) -> Iterator[Executor]:
    """Yield an executor. Disconnect from the cluster at the end, if there is one.

    `jobs` is the number of processes on this machine, by default one for each core. 0 stands for
    this process.
    """
    if on not in EXECUTORS:
        raise SettingsError(f"on = {on!r}: allowed: {', '.join(EXECUTORS)}")
    if jobs is not None and jobs < 0:
        raise SettingsError(f"jobs = {jobs}: allowed: a whole number; 0 stands for this process")
    if on == RAY and jobs == 0:
        raise SettingsError("jobs = 0: allowed with on = 'ray': a whole number > 0")
    if on == RAY:
        with connected(address) as cluster:
            yield on_ray(cluster)
    elif address is not None:
        raise SettingsError(f"address = {address!r} is for on = 'ray'")
    elif jobs == 0:
        yield InProcessExecutor()
    else:
        yield LocalExecutor(cores() if jobs is None else jobs)

"""A Ray cluster for as long as a run lasts: joined, or started here and gone afterwards."""

import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhql.cluster.file_transfer import scratch
from fedhql.cluster.placement import Amounts, bundles_for, cohorts_that_fit, fits
from fedhql.cluster.resources import Resources, in_words
from fedhql.cluster.versions import require_versions, versions_here
from fedhql.errors import ClusterError, MissingExtra, SettingsError

CONNECT_SECONDS = 10
OBJECT_STORE_BYTES = 256 * 2**20  # of a local Ray; what does not fit goes to its disk
SCRATCH_HOME = Path("/tmp")  # because the path of a socket has to be short
SCRATCH_PREFIX = "fedhql-ray-"

RAYS_OWN = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # what its daemons would print here; their logs have it
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # who asked for no GPU sees none
    "RAY_worker_niceness": "0",  # as with other engines; it would be 15
    "RAY_raylet_start_wait_time_s": "300",  # on a busy machine 30 seconds are not enough
}


@dataclass(frozen=True)
class Cluster:
    """What this process is connected to."""

    address: str
    versions: dict[str, str]  # those every node must have

    def nodes(self) -> list[dict[str, float]]:
        """The resources of each node that is alive now."""
        return nodes_alive()

    def total(self, resource: str) -> float:
        return sum(node.get(resource, 0.0) for node in self.nodes())

    def facts(self) -> dict[str, Any]:
        """For a run's manifest."""
        cpus, gpus = int(self.total("CPU")), int(self.total("GPU"))
        return {"nodes": len(self.nodes()), "cpus": cpus, "gpus": gpus}

    def cohorts_at_once(self, agents: Sequence[Resources], at_most: int) -> int:
        """How many cells' agents fit side by side; an error if not even one cell's do."""
        nodes = self.nodes()
        for number, agent in enumerate(agents, start=1):
            if not any(fits(agent.reserved(), node) for node in nodes):
                raise ClusterError(
                    f"agents.{number}.resources: no node has {in_words(agent.reserved())}; the "
                    f"largest there are: {in_words(_largest(nodes))}"
                )
        bundles, _ = bundles_for(agents, nodes)
        cohorts = cohorts_that_fit(bundles, nodes, at_most)
        if not cohorts:
            wanted = _sums(bundles)
            there = {name: amount for name, amount in _sums(nodes).items() if name in wanted}
            raise ClusterError(
                f"the agents ask for {in_words(wanted)} together, and the cluster has "
                f"{in_words(there)}, on nodes with no room for all of them at once; add nodes, or "
                "ask for less in agents.resources"
            )
        return cohorts


@contextmanager
def connected(address: str | None) -> Iterator[Cluster]:
    """Join the cluster at `address`, or start one here that ends with this block."""
    ray = import_ray()
    if address is not None and address.startswith("ray://"):
        raise SettingsError(
            f"--address {address}: Ray's client protocol is not supported; run fedhql on a node of "
            "the cluster (ray start --address=HOST:PORT), with --address HOST:PORT or auto"
        )
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    with ExitStack() as stack:
        if address is None:
            _with_token_of_ours()
            options |= {
                "address": "local",  # whatever RAY_ADDRESS says
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
                "_node_ip_address": "127.0.0.1",
                "_temp_dir": str(stack.enter_context(scratch(SCRATCH_PREFIX, SCRATCH_HOME))),
            }
        else:
            options |= {"address": _reachable(address)}
        stack.callback(ray.shutdown)
        try:
            with _quiet(), _own_signals():
                context = ray.init(**options)
        except Exception as error:  # Ray raises what it likes, also Exception itself
            what = f"--address {address}" if address else "a local Ray cannot be started"
            hint = "; if the cluster asks for a token: RAY_AUTH_MODE=token" if address else ""
            raise ClusterError(f"{what}: {error}{hint}") from error
        cluster = Cluster(context.address_info["gcs_address"], versions_here())
        if address is not None:
            if address == "auto" and SCRATCH_PREFIX in context.address_info["session_dir"]:
                raise ClusterError(
                    "--address auto: there is no cluster but the private one of another fedhql; "
                    "start one (ray start --head), or give HOST:PORT"
                )
            _require_alike_nodes(cluster)
        yield cluster


def _with_token_of_ours() -> None:
    """Ray would leave one in the user's home, which every later `ray start` then asks for."""
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # for the processes that we start, too


def _reachable(address: str) -> str:
    """As it is. Where nobody listens Ray would try for a quarter of an hour, and aloud."""
    if address == "auto":
        return address
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise SettingsError(f"--address {address}: allowed: HOST:PORT, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"--address {address}: nobody answers there ({error}); `ray status` on the head node "
            "tells its address"
        ) from error
    return address


def import_ray() -> Any:
    try:
        with _quiet():
            import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise MissingExtra.named("ray", "--engine ray") from error
    return ray


@contextmanager
def _quiet() -> Iterator[None]:
    """While Ray is loaded and starts: nothing is reported to anybody, and nothing is printed."""
    before = {name: os.environ.get(name) for name in RAYS_OWN}
    os.environ.update(RAYS_OWN)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _own_signals() -> Iterator[None]:
    """SIGTERM stays what it was: Ray would answer it with a stack trace on stderr."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _require_alike_nodes(cluster: Cluster) -> None:
    """Ask every node for its versions."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(num_cpus=0, max_retries=0)(versions_here)
    nodes = _alive()
    asked = [
        ask.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote()
        for node in nodes
    ]
    for node, answer in zip(nodes, asked, strict=True):
        try:
            found = ray.get(answer)
        except ray.exceptions.RayError:
            continue  # gone, or busy dying; whoever works there later is asked again
        require_versions(cluster.versions, found, node["NodeManagerAddress"])


def _alive() -> list[dict[str, Any]]:
    return [node for node in import_ray().nodes() if node["Alive"]]


def nodes_alive() -> list[dict[str, float]]:
    """The resources of each."""
    return [node["Resources"] for node in _alive()]


def _sums(all_amounts: Sequence[Amounts]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for amounts in all_amounts:
        for name, amount in amounts.items():
            sums[name] = sums.get(name, 0.0) + amount
    return sums


def _largest(nodes: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of what an agent can ask for."""
    names = ["CPU", "GPU", *sorted({name for node in nodes for name in node} - {"CPU", "GPU"})]
    rays_own = ("node:", "memory", "object_store_memory", "accelerator_type:")
    return {
        name: max((node.get(name, 0.0) for node in nodes), default=0.0)
        for name in names
        if not name.startswith(rays_own)
    }

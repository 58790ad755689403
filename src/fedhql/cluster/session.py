"""Join a Ray cluster for the duration of a run, or start a local one that ends with the run."""

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
OBJECT_STORE_BYTES = 256 * 2**20  # of a local Ray, which moves to disk what does not fit
SCRATCH_HOME = Path("/tmp")  # the path of a Unix socket must be short
SCRATCH_PREFIX = "fedhql-ray-"

RAYS_OWN = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # hide what Ray's daemons print; their logs have it
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # a worker that asked for no GPU sees none
    "RAY_worker_niceness": "0",  # as with other engines; Ray's default is 15
    "RAY_raylet_start_wait_time_s": "300",  # Ray's default of 30 is too short on a busy machine
}


@dataclass(frozen=True)
class Cluster:
    """The Ray cluster that this process is connected to."""

    address: str
    versions: dict[str, str]  # every node must have these

    def nodes(self) -> list[dict[str, float]]:
        """Return the resources of each node that is alive now."""
        return nodes_alive()

    def total(self, resource: str) -> float:
        return sum(node.get(resource, 0.0) for node in self.nodes())

    def facts(self) -> dict[str, Any]:
        """Return the size of the cluster, for the manifest of a run."""
        cpus, gpus = int(self.total("CPU")), int(self.total("GPU"))
        return {"nodes": len(self.nodes()), "cpus": cpus, "gpus": gpus}

    def cohorts_at_once(self, agents: Sequence[Resources], at_most: int) -> int:
        """Return how many cohorts fit at once, up to `at_most`; raise ClusterError if none fits."""
        nodes = self.nodes()
        for number, agent in enumerate(agents, start=1):
            if not any(fits(agent.reserved(), node) for node in nodes):
                raise ClusterError(
                    f"agents.{number}.resources: no node has {in_words(agent.reserved())}; the "
                    f"largest amounts on any node: {in_words(_largest(nodes))}"
                )
        bundles, _ = bundles_for(agents, nodes)
        cohorts = cohorts_that_fit(bundles, nodes, at_most)
        if not cohorts:
            wanted = _sums(bundles)
            there = {name: amount for name, amount in _sums(nodes).items() if name in wanted}
            raise ClusterError(
                f"the agents ask for {in_words(wanted)} together and the cluster has "
                f"{in_words(there)}, but its nodes have no room for all agents at once; add nodes, "
                "or ask for less in agents.resources"
            )
        return cohorts


@contextmanager
def connected(address: str | None) -> Iterator[Cluster]:
    """Join the cluster at `address`, or start a local one that ends with this block.

    Raise SettingsError if the address is wrong, and ClusterError if the cluster cannot be used.
    """
    ray = import_ray()
    if address is not None and address.startswith("ray://"):
        raise SettingsError(
            f"--address {address}: Ray's client protocol is not supported; run fedhql on a node of "
            "the cluster (ray start --address=HOST:PORT), with --address HOST:PORT or auto"
        )
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    with ExitStack() as stack:
        if address is None:
            _set_token()
            options |= {
                "address": "local",  # so that Ray ignores RAY_ADDRESS
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
        except Exception as error:  # Ray raises many types, even Exception itself
            what = f"--address {address}" if address else "a local Ray cannot be started"
            hint = "; if the cluster asks for a token, set RAY_AUTH_MODE=token" if address else ""
            raise ClusterError(f"{what}: {error}{hint}") from error
        cluster = Cluster(context.address_info["gcs_address"], versions_here())
        if address is not None:
            if address == "auto" and SCRATCH_PREFIX in context.address_info["session_dir"]:
                raise ClusterError(
                    "--address auto: the only cluster here is a private one of another fedhql run; "
                    "start one (ray start --head), or give HOST:PORT"
                )
            _require_same_versions(cluster)
        yield cluster


def _set_token() -> None:
    """Set a token for a local Ray, unless the user has set one.

    Otherwise Ray would leave one in the user's home, and every later `ray start` would ask for it.
    """
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # processes that we start inherit it


def _reachable(address: str) -> str:
    """Return the address, or raise ClusterError if it does not accept connections.

    Ray itself would retry for a quarter of an hour and print messages.
    """
    if address == "auto":
        return address
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise SettingsError(f"--address {address}: allowed: HOST:PORT, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"--address {address}: no answer ({error}); `ray status` on the head node shows its "
            "address"
        ) from error
    return address


def import_ray() -> Any:
    try:
        with _quiet():
            import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise MissingExtra.named("ray", "--on ray") from error
    return ray


@contextmanager
def _quiet() -> Iterator[None]:
    """Set RAYS_OWN while Ray is loaded or starts: it then reports no usage and prints nothing."""
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
    """Restore the SIGTERM handler: the one that Ray sets prints a stack trace."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _require_same_versions(cluster: Cluster) -> None:
    """Ask every node for its versions; raise ClusterError if they differ from ours."""
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
            continue  # the node is lost; workers check their versions again
        require_versions(cluster.versions, found, node["NodeManagerAddress"])


def _alive() -> list[dict[str, Any]]:
    return [node for node in import_ray().nodes() if node["Alive"]]


def nodes_alive() -> list[dict[str, float]]:
    """Return the resources of each node that is alive."""
    return [node["Resources"] for node in _alive()]


def _sums(all_amounts: Sequence[Amounts]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for amounts in all_amounts:
        for name, amount in amounts.items():
            sums[name] = sums.get(name, 0.0) + amount
    return sums


def _largest(nodes: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the largest amount on any node, for each resource that an agent can ask for."""
    names = ["CPU", "GPU", *sorted({name for node in nodes for name in node} - {"CPU", "GPU"})]
    rays_own = ("node:", "memory", "object_store_memory", "accelerator_type:")
    return {
        name: max((node.get(name, 0.0) for node in nodes), default=0.0)
        for name in names
        if not name.startswith(rays_own)
    }

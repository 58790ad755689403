"""What Ray costs, how cost grows with agents, states and nodes, and what the server costs at scale.

    python benchmarks/cluster.py [exchange|batch|tabular|dqn|server|suite|weak ...]

Contenders take turns within one run; a figure is a median, and a ratio is what counts. `suite` and
`weak` start Ray nodes of one core each, pinned to different cores, and take minutes.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedhql.cluster.resources import Resources
from fedhql.cluster.session import RAYS_OWN, Cluster, connected, import_ray
from fedhql.contract import Actions, States, Values
from fedhql.engines.build import build_batch, build_server, gather_here
from fedhql.engines.jax_setup import prepare_jax
from fedhql.federation import Budget, fed_ucb
from fedhql.federation.cohort import usable_answers
from fedhql.running.ray_executors import gather_on_ray
from fedhql.settings.experiment import read_settings
from fedhql.settings.sections import ExperimentSettings
from fedhql.threads import ONE_THREAD

if TYPE_CHECKING:
    from fedhql.cluster.ray_cohort import RayCohort

ACTIONS = 2
REPEATS = 400
FEDHQL = Path(sys.executable).with_name("fedhql")


class Prompt:
    """An agent that answers at once: what is left is the way to it and back."""

    def self_learn(self, env_steps: int) -> None: ...

    def q_values(self, states: States) -> Values:
        return np.zeros((len(states), ACTIONS), dtype=np.float32)

    def improve(self, states: States, actions: Actions, targets: Values) -> None: ...


class Empty:
    """An actor whose method does nothing: a call to it costs what Ray itself costs."""

    def nothing(self) -> None: ...


@contextmanager
def empty_calls(count: int) -> Iterator[Callable[[], object]]:
    """A function that calls `count` empty actors once each and waits for all of them."""
    ray = import_ray()
    actors = [
        ray.remote(num_cpus=0, runtime_env={"env_vars": ONE_THREAD})(Empty).remote()
        for _ in range(count)
    ]
    try:
        yield lambda: ray.get([actor.nothing.remote() for actor in actors])
    finally:
        for actor in actors:
            ray.kill(actor)


def prompt_agents(cluster: Cluster, count: int) -> "RayCohort":
    from fedhql.cluster.ray_cohort import RayCohort

    return RayCohort(
        [Prompt] * count,
        ACTIONS,
        names=[f"agent{n}" for n in range(count)],
        resources=[Resources()] * count,
        versions=cluster.versions,
    )


def by_turns(contenders: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """-> the median seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, call in contenders.items():
            begun = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - begun)
    return {name: float(np.median(taken)) for name, taken in seconds.items()}


def exchange(most_actors: int) -> None:
    print("\nAn exchange against as many empty actor calls (128 states of 4 numbers)\n")
    print("| agents | empty calls | query | improve | query over empty | improve over empty |")
    print("|---|---|---|---|---|---|")
    with connected(None) as cluster:
        for count in (n for n in (5, 20, 80, 200) if n <= most_actors):
            with closing(prompt_agents(cluster, count)) as cohort, empty_calls(count) as empty:
                print(_exchange_row(cohort, empty, count, 128))


def batch() -> None:
    print("\nAn exchange with 5 agents, by the number of states\n")
    print("| states | empty calls | query | improve | query over empty | improve over empty |")
    print("|---|---|---|---|---|---|")
    with (
        connected(None) as cluster,
        closing(prompt_agents(cluster, 5)) as cohort,
        empty_calls(5) as empty,
    ):
        for B in (1, 16, 128, 1024, 8192):
            print(_exchange_row(cohort, empty, B, B))


def _exchange_row(cohort: "RayCohort", call_empty: Callable[[], object], first: int, B: int) -> str:
    states = np.zeros((B, 4), dtype=np.float32)
    actions, targets = np.zeros(B, dtype=np.int64), np.zeros(B, dtype=np.float32)
    calls: dict[str, Callable[[], object]] = {
        "empty": call_empty,
        "query": partial(cohort.query, states),
        "improve": partial(cohort.improve, states, actions, targets),
    }
    by_turns(calls, 20)  # the first calls open connections
    took = by_turns(calls, max(30, REPEATS * 5 // len(cohort.names)))
    empty, query, improve = (took[name] for name in ("empty", "query", "improve"))
    ms = " | ".join(f"{1e3 * seconds:.2f} ms" for seconds in (empty, query, improve))
    return f"| {first} | {ms} | {query / empty:.2f} | {improve / empty:.2f} |"


AGENTS = {
    "tabular": ("FrozenLake-v1", 'kind = "tabular"'),
    "dqn": ("CartPole-v1", "hidden = [64, 64]\nlearning_starts = 100\nimprovement_steps = 8"),
}


def federation_of(kind: str, count: int) -> ExperimentSettings:
    environment, agent = AGENTS[kind]
    return read_settings(
        f'[environment]\nid = "{environment}"\n[budget]\nenv_steps_per_agent = 10_000\n'
        "[federation]\nself_learning_env_steps = 500\n" + f"[[agents]]\n{agent}\n" * count
    )


def agents(kind: str, most_actors: int) -> None:
    print("\nA round: 500 self-learning steps an agent, then 16 server steps on 128 states\n")
    print("| agents | where | gathered in | self-learning | federation | a server step |")
    print("|---|---|---|---|---|---|")
    prepare_jax()
    with connected(None) as cluster:
        for count in (5, 20, 80, 200):
            settings = federation_of(kind, count)
            print(_round_row(kind, "in process", settings, gather_here))
            if count <= most_actors:
                print(_round_row(kind, "Ray", settings, partial(gather_on_ray, cluster)))


def _round_row(kind: str, where: str, settings: ExperimentSettings, gather: Any) -> str:
    N = len(settings.agents)
    begun = time.perf_counter()
    with ExitStack() as stack:
        cohort = stack.enter_context(closing(gather(settings, 0, lambda env_steps: None)))
        gathered = time.perf_counter() - begun
        environments = stack.enter_context(
            closing(build_batch(settings, settings.federation.query_batch))
        )
        server = build_server(settings, cohort, environments)

        def learn() -> None:
            cohort.self_learn(settings.federation.self_learning_env_steps)

        def federate() -> None:
            server.federate(Budget(10**6, N), range(settings.federation.query_batch))

        learn()  # compiled, if it has to be
        federate()
        took = by_turns({"learn": learn, "federate": federate}, 3)
    step = took["federate"] / settings.federation.horizon_steps
    return (
        f"| {N} {kind} | {where} | {gathered:.1f} s | {took['learn']:.2f} s | "
        f"{took['federate']:.2f} s | {1e3 * step:.1f} ms |"
    )


def server() -> None:
    """What the server does with answers, without agents."""
    print("\nA query's answers at the server: 128 states, 2 actions\n")
    print("| agents | answers | scored |")
    print("|---|---|---|")
    rng = np.random.default_rng(0)
    for N in (5, 1_000, 10_000):
        q = [rng.normal(100, 10, size=(128, ACTIONS)).astype(np.float32) for _ in range(N)]

        def direct(q: list[Values] = q) -> Any:
            return fed_ucb(usable_answers(q).q_NBA, 1.0)

        took = by_turns({"direct": direct}, 15)
        megabytes = sum(values.nbytes for values in q) / 1e6
        print(f"| {N:,} | {megabytes:.2f} MB | {1e3 * took['direct']:.2f} ms |")


@contextmanager
def nodes_of_one_core(count: int) -> Iterator[str]:
    """A head that does no work, and nodes pinned to a core each -> the address."""
    os.environ.update(RAYS_OWN)  # which are for a busy machine, too
    import_ray()
    from ray.cluster_utils import Cluster as NodesHere

    cores = sorted(os.sched_getaffinity(0))
    nodes: Any = NodesHere(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    try:
        for n in range(count):
            os.sched_setaffinity(0, {cores[n % len(cores)]})  # what it starts inherits this
            nodes.add_node(num_cpus=1)
        os.sched_setaffinity(0, cores)
        yield nodes.address
    finally:
        os.sched_setaffinity(0, cores)
        nodes.shutdown()


def suite_seconds(nodes: int, *options: str) -> float:
    """Of the command; the nodes are there before it starts."""
    with nodes_of_one_core(nodes) as address, tempfile.TemporaryDirectory() as home:
        command = [str(FEDHQL), "suite", "cartpole-n5", "--on", "ray", "--address", address]
        begun = time.perf_counter()
        subprocess.run([*command, "--out", home, *options], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - begun


def suite(repeats: int) -> None:
    print("\nfedhql suite cartpole-n5 --budget-fraction 0.02, nodes of one core each\n")
    _compare({1: ("--budget-fraction", "0.02"), 2: ("--budget-fraction", "0.02")}, repeats)


def weak(repeats: int) -> None:
    print("\nThe same, with as many cells for each node: 2 seeds on one, 4 on two\n")
    small = ("--budget-fraction", "0.02", "--seeds")
    _compare({1: (*small, "0,1"), 2: (*small, "0,1,2,3")}, repeats)


def _compare(options: dict[int, tuple[str, ...]], repeats: int) -> None:
    suite_seconds(2, *options[2])  # programs are compiled, and kept
    took: dict[int, list[float]] = {nodes: [] for nodes in options}
    for _ in range(repeats):
        for nodes, more in options.items():  # by turns
            took[nodes].append(suite_seconds(nodes, *more))
    print("| nodes | seconds, the median | each |\n|---|---|---|")
    for nodes, seconds in took.items():
        each = ", ".join(f"{one:.1f}" for one in seconds)
        print(f"| {nodes} | {np.median(seconds):.1f} | {each} |")
    print(f"\none node's time over two nodes': {np.median(took[1]) / np.median(took[2]):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    every = ("exchange", "batch", *AGENTS, "server")
    parser.add_argument("what", nargs="*", default=every, choices=[*every, "suite", "weak"])
    parser.add_argument("--most-actors", type=int, default=20, metavar="N")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="of suite and weak")
    chosen = parser.parse_args()
    for what in chosen.what:
        match what:
            case "exchange":
                exchange(chosen.most_actors)
            case "batch":
                batch()
            case "tabular" | "dqn":
                agents(what, chosen.most_actors)
            case "server":
                server()
            case "suite":
                suite(chosen.repeats)
            case "weak":
                weak(chosen.repeats)


if __name__ == "__main__":
    main()

"""Nodes of a Ray cluster on this machine, started by a separate process.

Ray forks to start a node. In a process with threads of JAX, as in a test run, the fork hangs at
times. The separate process has no such threads. It ends, with its nodes, when its standard input
is closed, even if the test run is killed.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from fedhql.cluster.session import RAYS_OWN, import_ray

PARTING_SECONDS = 60.0


class Nodes:
    """A head node that runs no work, and one other node for each number of CPUs."""

    def __init__(self, cpus: Sequence[int] = (1,)) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *map(str, cpus)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = self._answer()

    def replace_one(self) -> None:
        """Kill the last node and let another one like it join."""
        assert self._process.stdin is not None
        print("replace", file=self._process.stdin, flush=True)
        self._answer()

    def shutdown(self) -> None:
        try:
            self._process.communicate(timeout=PARTING_SECONDS)
        finally:
            self._process.kill()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().strip()
        if not answer:
            raise RuntimeError("the process that starts the nodes has ended; see its stderr")
        return answer


def main() -> None:
    """Start the nodes, print the address, then replace a node for each line of standard input."""
    answers, sys.stdout = sys.stdout, sys.stderr  # keep what Ray prints out of the answers
    os.environ.update(RAYS_OWN)  # they also give Ray more time on a busy machine
    import_ray()
    from ray.cluster_utils import Cluster as NodesHere

    nodes: Any = NodesHere(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    try:
        for cpus in map(int, sys.argv[1:]):
            last = nodes.add_node(num_cpus=cpus, resources={"away": 3})
        print(nodes.address, file=answers, flush=True)
        for _ in sys.stdin:
            nodes.remove_node(last, allow_graceful=False)
            last = nodes.add_node(num_cpus=cpus, resources={"away": 3})
            print("replaced", file=answers, flush=True)
    finally:
        nodes.shutdown()


if __name__ == "__main__":
    main()

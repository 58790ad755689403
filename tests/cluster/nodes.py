"""Nodes of a Ray cluster on this machine, in a process of their own.

Ray forks to start a node, which hangs at times in a process where JAX has threads, as it has in
those that run tests. This one has none. It ends, and its nodes with it, when its standard input
does: also if whoever started it is killed.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from fedhql.cluster.session import RAYS_OWN, import_ray

PARTING_SECONDS = 60.0


class Nodes:
    """A head that does no work of its own, and others with so many CPUs each."""

    def __init__(self, cpus: Sequence[int] = (1,)) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *map(str, cpus)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = self._answer()

    def replace_one(self) -> None:
        """The last node is killed, and another like it joins."""
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
            raise RuntimeError("the process of the nodes has ended; its stderr says why")
        return answer


def main() -> None:
    """In that process: a line for each command that has been obeyed, the first is the address."""
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever Ray has to say is none of them
    os.environ.update(RAYS_OWN)  # which are for a busy machine, too
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

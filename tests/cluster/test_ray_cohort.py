"""Crews that want the same nodes of a Ray cluster on this machine."""

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from fedhql.cluster import ray_cohort as cohort
from fedhql.cluster.ray_cohort import RayCohort
from fedhql.cluster.resources import Resources
from fedhql.cluster.session import Cluster, connected
from fedhql.errors import AgentsLost
from tests.cluster.agents import Sited
from tests.cluster.nodes import Nodes

CPUS = (3, 2)  # of the nodes that have any
HEAD_START_SECONDS = 3.0  # for a cohort to take what it would take
STATES = np.arange(4)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    running = Nodes(CPUS)
    yield running
    running.shutdown()


@pytest.fixture
def cluster(nodes: Nodes) -> Iterator[Cluster]:
    with connected(nodes.address) as joined:
        yield joined


def gather(cluster: Cluster, agents: int, cpus: float) -> RayCohort:
    return RayCohort(
        [partial(Sited, seed=0, until="/")] * agents,
        action_count=4,
        names=[f"agent{n}" for n in range(agents)],
        resources=[Resources(cpus=cpus)] * agents,
        versions=cluster.versions,
    )


def test_agents_that_ask_for_nothing_are_spread_over_the_nodes_with_cores(
    cluster: Cluster, tmp_path: Path
) -> None:
    with closing(gather(cluster, agents=6, cpus=0)) as cohort:
        cohort.save(tmp_path)
    found = Counter(path.read_text() for path in tmp_path.glob("*/node"))
    assert sorted(found.values()) == [3, 3]  # and none on the head


def test_a_crew_that_waits_says_so_and_holds_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cohort, "PATIENCE_SECONDS", HEAD_START_SECONDS / 2)
    with ThreadPoolExecutor(1) as aside, closing(gather(cluster, agents=3, cpus=1)):
        waiting = aside.submit(gather, cluster, agents=4, cpus=1)
        time.sleep(HEAD_START_SECONDS)
        gather(cluster, agents=2, cpus=1).close()
        assert not waiting.done()
    waiting.result().close()
    assert "4 of 4 agents are not there yet: they wait for 1 CPU; a node that" in caplog.text


def test_two_crews_with_room_for_one_both_finish(cluster: Cluster) -> None:
    both = Barrier(2)

    def work() -> int:
        both.wait()
        with closing(gather(cluster, agents=4, cpus=1)) as cohort:
            return len(cohort.query(STATES).members)

    with ThreadPoolExecutor(2) as threads:
        assert [each.result() for each in [threads.submit(work) for _ in range(2)]] == [4, 4]


def test_agents_are_not_lost_again_to_the_node_that_was(nodes: Nodes, cluster: Cluster) -> None:
    """For some seconds Ray takes the lost node for one that is alive."""
    with closing(gather(cluster, agents=4, cpus=0)) as cohort:
        nodes.replace_one()
        with pytest.raises(AgentsLost):
            cohort.query(STATES)
    with closing(gather(cluster, agents=4, cpus=0)) as cohort:
        assert len(cohort.query(STATES).members) == 4

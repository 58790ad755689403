"""Cohorts that compete for the nodes of a Ray cluster on this machine."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
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
from fedhql.contract import BlackBoxAgent
from fedhql.errors import AgentsLost
from tests.cluster.agents import SelfWilled, Sited
from tests.cluster.nodes import Nodes

CPUS = (3, 2)  # of the nodes other than the head
HEAD_START_SECONDS = 3.0  # enough for a waiting cohort to reserve what it can
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
    assert sorted(found.values()) == [3, 3]  # none runs on the head


def test_agents_in_actors_act_by_their_own_rule_or_greedily(cluster: Cluster) -> None:
    builders: list[Callable[[], BlackBoxAgent]] = [
        partial(SelfWilled, seed=0, until="/"),
        partial(Sited, seed=0, until="/"),
    ]
    wanted = [Resources(cpus=0)] * 2
    with closing(
        RayCohort(builders, 4, names=["a", "b"], resources=wanted, versions=cluster.versions)
    ) as cohort:
        own, greedy = cohort.act_each([STATES, STATES[:0]])
        assert (own.values.shape, own.actions.tolist()) == ((4, 4), [0, 1, 2, 0])
        assert (greedy.values.shape, greedy.actions.shape) == ((0, 4), (0,))
        assert cohort.act_each([STATES[:0], STATES])[1].actions.tolist() == [0, 0, 0, 0]


def test_a_waiting_cohort_logs_a_warning_and_reserves_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cohort, "PATIENCE_SECONDS", HEAD_START_SECONDS / 2)
    with ThreadPoolExecutor(1) as thread, closing(gather(cluster, agents=3, cpus=1)):
        waiting = thread.submit(gather, cluster, agents=4, cpus=1)
        time.sleep(HEAD_START_SECONDS)
        gather(cluster, agents=2, cpus=1).close()
        assert not waiting.done()
    waiting.result().close()
    assert "4 of 4 agents have not started yet: they wait for 1 CPU; a node that" in caplog.text


def test_two_cohorts_both_finish_if_there_is_room_for_one(cluster: Cluster) -> None:
    both = Barrier(2)

    def work() -> int:
        both.wait()
        with closing(gather(cluster, agents=4, cpus=1)) as cohort:
            return len(cohort.query(STATES).members)

    with ThreadPoolExecutor(2) as threads:
        assert [each.result() for each in [threads.submit(work) for _ in range(2)]] == [4, 4]


def test_new_agents_are_not_placed_on_a_lost_node(nodes: Nodes, cluster: Cluster) -> None:
    """Ray lists a lost node as alive for some seconds."""
    with closing(gather(cluster, agents=4, cpus=0)) as cohort:
        nodes.replace_one()
        with pytest.raises(AgentsLost):
            cohort.query(STATES)
    with closing(gather(cluster, agents=4, cpus=0)) as cohort:
        assert len(cohort.query(STATES).members) == 4

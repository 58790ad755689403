"""Runs on a Ray cluster on this machine, while a node is killed or the driver ends."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from fedhql.cluster import session
from fedhql.cluster.session import Cluster, connected
from fedhql.cluster.versions import versions_here
from fedhql.engines.cell_records import Progress
from fedhql.engines.work import Executor
from fedhql.errors import ClusterError
from fedhql.running.local_executor import LocalExecutor
from fedhql.running.ray_executors import RayActorExecutor, RayTaskExecutor
from fedhql.running.run import run_experiment
from fedhql.running.worker_processes import WorkerFailed
from fedhql.settings.experiment import read_settings
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.checkpoints import latest_checkpoint
from fedhql.storage.run_directory import Cell, RunDirectory
from tests.cluster.nodes import Nodes

EXPERIMENT = """
[environment]
id = "FrozenLake-v1"
discount = 0.95
[federation]
query_batch = 8
horizon_steps = 3
self_learning_env_steps = 50
[budget]
env_steps_per_agent = 2_500
[evaluation]
episodes = 1
episode_step_limit = 5
best_episodes = 10
"""

GRID = """
[environment]
id = "CartPole-v1"
[federation]
query_batch = 8
self_learning_env_steps = 500
[budget]
env_steps_per_agent = 100_000
[evaluation]
episodes = 1
best_episodes = 0
[[agents]]
hidden = [8]
learning_starts = 500
[[agents]]
hidden = [4]
learning_starts = 500
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    running = Nodes()
    yield running
    running.shutdown()


@pytest.fixture
def cluster(nodes: Nodes) -> Iterator[Cluster]:
    with connected(nodes.address) as joined:
        yield joined


class Meddling:
    """A display that meddles once, as soon as a cell has a checkpoint after round 0."""

    def __init__(self, directory: RunDirectory, meddle: Callable[[], None]) -> None:
        self._directory, self._meddle = directory, meddle
        self._cells: Sequence[Cell] = ()
        self.done = False

    def start(self, cells: Sequence[Cell], budget_env_steps: int) -> None:
        self._cells = cells

    def show(self, progress: Progress) -> None:
        if not self.done and any(self._round(cell) > 0 for cell in self._cells):
            self.done = True
            self._meddle()

    def _round(self, cell: Cell) -> int:
        homes = [self._directory.checkpoints(cell), *self._directory.path.glob("grids/*")]
        found = [latest for home in homes if (latest := latest_checkpoint(home))]
        return max((int(latest.name.removeprefix("round-")) for latest in found), default=0)


def experiment(until: Path, kind: str = "Unhurried", *, away: bool = False) -> ExperimentSettings:
    agents = "".join(
        f'[[agents]]\nkind = "tests.cluster.agents:{kind}"\nuntil = "{until}"\n'
        f"epsilon = {epsilon}\n" + "resources = {custom = {away = 1}}\n" * away
        for epsilon in (0.1, 0.3, 0.5)
    )
    return read_settings(EXPERIMENT + agents)


def run(
    settings: ExperimentSettings,
    home: Path,
    executor: Executor,
    arms: Sequence[str],
    meddle: Callable[[], None] = lambda: None,
    *,
    resume: bool = False,
    engine: str = "messages",
) -> bool:
    """Run the experiment; return whether `meddle` was called."""
    display = Meddling(RunDirectory(home), meddle)
    run_experiment(
        settings,
        RunDirectory(home),
        arms=arms,
        seeds=[0],
        engine=engine,
        resume=resume,
        executor=executor,
        track=(),
        command=[],
        started=datetime.now(UTC),
        clock=time.monotonic,
        display=display,
    )
    return display.done


def contents(home: Path) -> dict[str, bytes]:
    """Return the content of all files of a run, except those that hold times."""
    timed = {"manifest.json", "summary.json", "result.json", ".lock"}
    found = (path for path in home.rglob("*") if path.is_file() and path.name not in timed)
    return {path.relative_to(home).as_posix(): path.read_bytes() for path in found}


def test_tasks_of_a_killed_node_continue_on_a_node_that_joins(
    nodes: Nodes, cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The killed node is the only one that runs tasks, so they must move to the new one."""
    arms, hurry = ["independent", "fedhql"], tmp_path / "hurry"
    settings = experiment(hurry)

    def replace_the_node() -> None:
        nodes.replace_one()
        hurry.touch()

    executor = RayTaskExecutor(cluster, time.monotonic)
    assert run(settings, tmp_path / "disturbed", executor, arms, replace_the_node)
    assert "starts again from the files" in caplog.text
    run(settings, tmp_path / "whole", LocalExecutor(1), arms)
    assert contents(tmp_path / "disturbed") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_a_compiled_grid_continues_after_its_node_is_killed(
    nodes: Nodes, cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings, arms = read_settings(GRID), ["independent", "fedhql"]
    executor = RayTaskExecutor(cluster, time.monotonic)
    disturbed = partial(run, settings, tmp_path / "disturbed", executor, arms, engine="compiled")
    assert disturbed(meddle=nodes.replace_one)
    assert "starts again from the files" in caplog.text
    run(settings, tmp_path / "whole", LocalExecutor(1), arms, engine="compiled")
    assert contents(tmp_path / "disturbed") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_a_driver_that_was_interrupted_can_be_resumed(cluster: Cluster, tmp_path: Path) -> None:
    """It resumes from the files that had arrived completely, and ignores partial ones."""
    arms, hurry = ["independent", "fedhql"], tmp_path / "hurry"
    settings, executor = experiment(hurry), RayTaskExecutor(cluster, time.monotonic)

    def end() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(settings, tmp_path / "ended", executor, arms, end)
    half = tmp_path / "ended/.arriving/0/cells/independent/seed0/checkpoint/round-000000999/half"
    half.parent.mkdir(parents=True)
    half.touch()
    hurry.touch()
    run(settings, tmp_path / "ended", executor, arms, resume=True)
    run(settings, tmp_path / "whole", LocalExecutor(1), arms)
    assert contents(tmp_path / "ended") == contents(tmp_path / "whole")


@pytest.mark.parametrize("what_runs", ["tasks", pytest.param("agents", marks=pytest.mark.slow)])
def test_an_error_in_an_agent_is_shown_and_not_retried(
    what_runs: str, cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    executor: Executor = RayTaskExecutor(cluster, time.monotonic)
    if what_runs == "agents":
        executor = RayActorExecutor(cluster, jobs=1)
    with pytest.raises(WorkerFailed, match=r"(?s)agents\.py.*broken on purpose"):
        run(experiment(tmp_path / "hurry", "Broken"), tmp_path / "run", executor, ["fedhql"])
    assert caplog.text == ""


def test_agents_of_a_killed_node_continue_on_a_node_that_joins(
    nodes: Nodes, cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the killed node has the resource that all agents ask for."""
    hurry = tmp_path / "hurry"
    settings = experiment(hurry, away=True)

    def replace_the_node() -> None:
        nodes.replace_one()
        hurry.touch()

    executor = RayActorExecutor(cluster, jobs=1)
    assert run(settings, tmp_path / "disturbed", executor, ["fedhql"], replace_the_node)
    assert caplog.text.count("continues from round-") == 1  # the agents were lost only once
    run(settings, tmp_path / "whole", LocalExecutor(1), ["fedhql"])
    assert contents(tmp_path / "disturbed") == contents(tmp_path / "whole")


def test_a_node_with_other_versions_is_named(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    here = os.getpid()

    def other_versions_elsewhere() -> dict[str, str]:
        return versions_here() | ({} if os.getpid() == here else {"fedhql": "0.0.1"})

    monkeypatch.setattr(session, "versions_here", other_versions_elsewhere)
    with (
        pytest.raises(ClusterError, match=r"node .* fedhql is 0\.0\.1 and not .* install"),
        connected(nodes.address),
    ):
        pass

"""What a run shows and says before it works. No cell is run."""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fedhql.engines.cell_records import Progress
from fedhql.engines.engine import DeviceFacts
from fedhql.engines.work import Work
from fedhql.running import run
from fedhql.running.local_executor import agents_here
from fedhql.settings.experiment import read_settings
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.run_directory import Cell, RunDirectory

EXPERIMENT = """
[environment]
id = "CartPole-v1"
[budget]
env_steps_per_agent = 1000
[[agents]]
"""
SETTINGS = read_settings(EXPERIMENT)
FEDERATED, ALONE = Cell("fedhql", 0), Cell("independent", 0)


class RecordingDisplay:
    def __init__(self) -> None:
        self.cells: list[Cell] = []

    def start(self, cells: Sequence[Cell], budget_env_steps: int) -> None:
        self.cells = list(cells)

    def show(self, progress: Progress) -> None: ...


class IdleExecutor:
    """Runs no part, and answers with the facts of a device."""

    agents = staticmethod(agents_here)

    def facts(self) -> dict[str, Any]:
        return {}

    def capacity(self, settings: ExperimentSettings, *, on_cpu: bool) -> tuple[int, int]:
        return 1, 1

    def run(
        self,
        work: Sequence[Work],
        jobs: int,
        directory: RunDirectory,
        on_message: Callable[[Any], None],
    ) -> None:
        on_message(DeviceFacts(is_cpu=True, memory_bytes=10**9, observation_size=4))


def begin(home: Path, settings: ExperimentSettings = SETTINGS) -> list[Cell]:
    """Begin a run. Return the cells that have a bar."""
    display = RecordingDisplay()
    run.run_experiment(
        settings,
        RunDirectory(home),
        arms=["independent", "fedhql"],
        seeds=[0],
        engine="auto",
        resume=True,
        executor=IdleExecutor(),
        track=(),
        command=[],
        started=datetime.now(UTC),
        clock=time.monotonic,
        display=display,
    )
    return display.cells


def test_every_cell_of_a_resumed_grid_has_a_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell that ended after the grid's last checkpoint is run again, so it has a bar too."""
    monkeypatch.setattr(run, "_dispatch", lambda display, message: None)
    assert set(begin(tmp_path)) == {FEDERATED, ALONE}
    RunDirectory(tmp_path).result(FEDERATED).parent.mkdir(parents=True)
    RunDirectory(tmp_path).result(FEDERATED).write_text("{}")
    assert set(begin(tmp_path)) == {FEDERATED, ALONE}


def test_a_run_of_a_manifest_without_an_engine_is_finished_by_messages(tmp_path: Path) -> None:
    """Such manifests are older than the compiled engine."""
    directory = RunDirectory(tmp_path)
    directory.write_manifest({"arms": ["fedhql"], "seeds": [0], "sessions": []})
    assert run._engine(directory, SETTINGS, "auto") == "messages"
    assert run._engine(directory, SETTINGS, "messages") == "messages"


@pytest.mark.parametrize(("phase", "warned"), [(1_000, True), (900, False)])
def test_an_arm_without_rounds_is_told_before_the_run(
    phase: int, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation = {"self_learning_env_steps": phase, "query_batch": 10}
    changed = SETTINGS.model_copy(
        update={"federation": SETTINGS.federation.model_copy(update=federation)}
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run, "_dispatch", lambda display, message: None)
        begin(tmp_path, changed)
    told = "no round takes place in fedhql: the budget of 1,000 env steps ends with the first phase"
    assert (told in caplog.text) == warned
    assert ("one agent has nobody to learn from" in caplog.text) == (not warned)  # it has rounds


@pytest.mark.parametrize(("agents", "warned"), [(1, True), (2, False)])
def test_a_federation_of_one_agent_is_told_before_the_run(
    agents: int, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    overrides = {"federation.self_learning_env_steps": 100, "federation.query_batch": 10}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run, "_dispatch", lambda display, message: None)
        begin(tmp_path, read_settings(EXPERIMENT + "[[agents]]\n" * (agents - 1), overrides))
    told = "one agent has nobody to learn from: its rounds in fedhql use its own values alone"
    assert (told in caplog.text) == warned


@pytest.mark.parametrize(
    ("option", "told"),
    [
        (
            "learning_starts",
            "agent1: training never starts; learning_starts must be below the budget",
        ),
        (
            "target_update_interval",
            "agent1: alone, the target network is never updated; "
            "target_update_interval must be below the budget of 1,000 env steps",
        ),
    ],
)
@pytest.mark.parametrize(("value", "warned"), [(1_000, True), (999, False)])
def test_an_agent_that_the_budget_is_too_small_for_is_told_before_the_run(
    option: str,
    value: int,
    told: str,
    warned: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run, "_dispatch", lambda display, message: None)
        begin(tmp_path, read_settings(f"{EXPERIMENT}{option} = {value}"))
    assert (told in caplog.text) == warned

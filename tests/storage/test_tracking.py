"""Tools that scalars also go to. MLflow and Weights & Biases are stand-ins that record calls."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

import fedhql
from fedhql.errors import MissingExtra, SettingsError
from fedhql.storage.mlflow_tracker import MlflowTracker
from fedhql.storage.tracking import TRACKERS, require_trackers, start_trackers
from tests.api.agents import BUDGET, ENV, QUICK

Calls = list[tuple[Any, ...]]


class Metric(NamedTuple):
    key: str
    value: float
    timestamp: int
    step: int


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Return the calls that change something on a server that is empty at first."""
    calls: Calls = []
    experiments: dict[str, str] = {}

    class MlflowClient:
        def get_experiment_by_name(self, name: str) -> Any:
            found = experiments.get(name)
            return found and SimpleNamespace(experiment_id=found)

        def create_experiment(self, name: str) -> str:
            calls.append(("create_experiment", name))
            experiments[name] = f"id of {name}"
            return experiments[name]

        def create_run(self, experiment_id: str, *, run_name: str) -> Any:
            calls.append(("create_run", experiment_id, run_name))
            return SimpleNamespace(info=SimpleNamespace(run_id=f"run {len(calls)}"))

        def log_batch(self, run_id: str, *, metrics: list[Metric]) -> None:
            calls.append(("log_batch", run_id, metrics))

        def set_terminated(self, run_id: str) -> None:
            calls.append(("set_terminated", run_id))

    package, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    package.MlflowClient, entities.Metric = MlflowClient, Metric  # type: ignore[attr-defined]  # a stand-in
    monkeypatch.setitem(sys.modules, "mlflow", package)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return calls


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls: Calls = []

    def init(**options: Any) -> Any:
        calls.append(("init", options))
        return SimpleNamespace(
            log=lambda figures, step: calls.append(("log", figures, step)),
            finish=lambda: calls.append(("finish",)),
        )

    package = ModuleType("wandb")
    package.init = init  # type: ignore[attr-defined]  # a stand-in
    monkeypatch.setitem(sys.modules, "wandb", package)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return calls


def test_an_unknown_tool_is_refused() -> None:
    with pytest.raises(SettingsError, match="--track neptune: allowed: tensorboard, mlflow, wandb"):
        require_trackers(["neptune"])


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tool_that_is_not_installed_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=rf"--track {name} needs .* 'fedhql\[{name}\]'"):
        require_trackers([name])


def test_what_the_package_itself_lacks_is_not_our_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> None:
        raise ModuleNotFoundError("No module named 'sqlalchemy'", name="sqlalchemy")

    package = ModuleType("mlflow")
    package.MlflowClient = load  # type: ignore[attr-defined]  # a stand-in
    monkeypatch.setitem(sys.modules, "mlflow", package)
    with pytest.raises(ModuleNotFoundError, match="sqlalchemy"):
        require_trackers(["mlflow"])


def test_mlflow_gets_metrics_and_a_resumed_run_continues(mlflow: Calls, tmp_path: Path) -> None:
    for _ in range(2):
        tracker = MlflowTracker(tmp_path, "mine fedhql/seed0", wall_clock=lambda: 1.5)
        tracker.write("agent1, after rounds", {"eval/mean_reward": 9.0}, 200)
        tracker.close()
    metrics = [Metric("agent1_ after rounds/eval/mean_reward", 9.0, 1_500, 200)]
    written = [("log_batch", "run 2", metrics), ("set_terminated", "run 2")]
    begun = [("create_experiment", "fedhql"), ("create_run", "id of fedhql", "mine fedhql/seed0")]
    assert mlflow == begun + written + written


def test_mlflow_uses_the_experiment_of_its_variable(
    mlflow: Calls, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "poles")
    require_trackers(["mlflow"])
    MlflowTracker(tmp_path, "mine")
    assert mlflow == [("create_experiment", "poles"), ("create_run", "id of poles", "mine")]


def test_wandb_gets_scalars_and_a_resumed_run_continues(wandb: Calls, tmp_path: Path) -> None:
    for _ in range(2):
        (tracker,) = start_trackers(["wandb"], tmp_path.joinpath, "mine fedhql/seed0")
        tracker.write("server", {"federation/loss": 0.5}, 200)
        tracker.close()
    (_, first), *written = wandb[:3]
    assert written == [("log", {"server/federation/loss": 0.5}, 200), ("finish",)]
    assert (first["project"], first["name"]) == ("fedhql", "mine fedhql/seed0")
    assert first["dir"] == str(tmp_path / "wandb")
    assert (tmp_path / "wandb").is_dir()
    assert (first["resume"], first["reinit"]) == ("allow", "create_new")
    assert wandb[3][1]["id"] == first["id"]


@pytest.mark.parametrize("track", ["mlflow", ["mlflow", "wandb"]])
def test_a_study_writes_every_cell_to_every_tool(
    track: str | list[str], mlflow: Calls, wandb: Calls, tmp_path: Path
) -> None:
    fedhql.study(
        ["tabular"], ENV, BUDGET, settings=QUICK, out=tmp_path / "mine", track=track, jobs=0,
        progress=False,
    )  # fmt: skip
    assert [call[2] for call in mlflow if call[0] == "create_run"] == [
        "mine independent/seed0",
        "mine fedhql/seed0",
    ]
    metrics = [metric for call in mlflow if call[0] == "log_batch" for metric in call[2]]
    keys = {metric.key for metric in metrics}
    assert {
        "agent1/eval/mean_reward",
        "consensus/eval/mean_reward",
        "server/federation/loss",
    } < keys
    assert [call[0] for call in mlflow].count("set_terminated") == 2
    logged = [(call[1], call[2]) for call in wandb if call[0] == "log"]
    assert sum(len(figures) for figures, _ in logged) == (0 if track == "mlflow" else len(metrics))

"""Tools that scalars also go to: MLflow with files, Weights & Biases offline."""

import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest

import fedhql
from fedhql.errors import MissingExtra, SettingsError
from fedhql.storage.mlflow_tracker import MlflowTracker
from fedhql.storage.tracking import TRACKERS, require_trackers, start_trackers
from tests.api.agents import BUDGET, ENV, QUICK


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return a client of an empty MLflow."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlflow store").as_uri())
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return mlflow.MlflowClient()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_PROJECT", raising=False)


def runs_of(client: Any, experiment: str) -> list[Any]:
    (found,) = client.search_experiments(filter_string=f"name = '{experiment}'")
    return list(client.search_runs([found.experiment_id]))


def test_an_unknown_tool_is_refused() -> None:
    with pytest.raises(SettingsError, match="--track neptune: allowed: tensorboard, mlflow, wandb"):
        require_trackers(["neptune"])


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tool_that_is_not_installed_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=rf"--track {name} needs .* 'fedhql\[{name}\]'"):
        require_trackers([name])


def test_an_mlflow_that_has_nowhere_to_write_says_what_it_can_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://here")
    with pytest.raises(SettingsError, match="MLFLOW_TRACKING_URI: the address of a server"):
        require_trackers(["mlflow"])


def test_weights_and_biases_without_an_account_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import wandb

    def refuse(**_: Any) -> None:
        raise wandb.Error("No API key configured.")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=refuse, Error=wandb.Error))
    with pytest.raises(SettingsError, match=r"API key configured\. WANDB_MODE=offline needs no"):
        start_trackers(["wandb"], tmp_path.joinpath, "mine")


def test_mlflow_gets_metrics_and_a_resumed_run_continues(client: Any, tmp_path: Path) -> None:
    for step in (200, 400):
        tracker = MlflowTracker(tmp_path / "kept", "mine fedhql/seed0", wall_clock=lambda: 1.5)
        tracker.write("agent1, after rounds", {"eval/mean_reward": 9.0}, step)
        tracker.close()
    (run,) = runs_of(client, "fedhql")
    assert (run.info.run_name, run.info.status) == ("mine fedhql/seed0", "FINISHED")
    history = client.get_metric_history(run.info.run_id, "agent1_ after rounds/eval/mean_reward")
    assert [(each.value, each.timestamp, each.step) for each in history] == [
        (9.0, 1_500, 200),
        (9.0, 1_500, 400),
    ]


def test_mlflow_uses_the_experiment_of_its_variable(
    client: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "poles")
    require_trackers(["mlflow"])
    MlflowTracker(tmp_path / "kept", "mine")
    assert [run.info.run_name for run in runs_of(client, "poles")] == ["mine"]


@pytest.mark.usefixtures("offline")
def test_a_study_writes_every_cell_to_every_tool(client: Any, tmp_path: Path) -> None:
    fedhql.study(
        ["tabular"], ENV, BUDGET, settings=QUICK, out=tmp_path / "mine",
        track=["mlflow", "wandb"], jobs=0, progress=False,
    )  # fmt: skip
    runs = {run.info.run_name: run for run in runs_of(client, "fedhql")}
    assert sorted(runs) == ["mine fedhql/seed0", "mine independent/seed0"]
    figures = runs["mine fedhql/seed0"].data.metrics
    expected = ("agent1/eval/mean_reward", "consensus/eval/mean_reward", "server/federation/loss")
    assert set(expected) < set(figures)
    # Offline, Weights & Biases keeps one file for each of its runs, with the names as they are.
    home = tmp_path / "mine" / "wandb"
    (file,) = (home / "fedhql" / "seed0").rglob("*.wandb")
    assert all(key.encode() in file.read_bytes() for key in expected)
    assert Counter(path.parts[-5] for path in home.rglob("*.wandb")) == {
        "independent": 1,
        "fedhql": 1,
    }


@pytest.mark.usefixtures("offline")
def test_a_resumed_run_of_weights_and_biases_keeps_its_id(tmp_path: Path) -> None:
    for _ in range(2):
        (tracker,) = start_trackers(["wandb"], tmp_path.joinpath, "mine fedhql/seed0")
        tracker.write("server", {"federation/loss": 0.5}, 200)
        tracker.close()
    ids = {file.stem for file in tmp_path.rglob("*.wandb")}
    assert ids == {f"run-{(tmp_path / 'wandb' / 'run_id').read_text()}"}

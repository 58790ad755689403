"""Tools that scalars also go to: MLflow with files, Weights & Biases offline."""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest

import fedhql
from fedhql.errors import MissingExtra, SettingsError
from fedhql.storage.mlflow_tracker import MlflowTracker
from fedhql.storage.tracking import TRACKERS, Tracking, require_trackers
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
    with pytest.raises(
        SettingsError, match="track = 'neptune': allowed: tensorboard, mlflow, wandb"
    ):
        require_trackers(["neptune"])


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tool_that_is_not_installed_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=rf"track = '{name}' needs .* 'fedhql\[{name}\]'"):
        require_trackers([name])


def test_an_mlflow_that_has_nowhere_to_write_says_what_it_can_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://here")
    with pytest.raises(SettingsError, match="MLFLOW_TRACKING_URI: the address of a server"):
        require_trackers(["mlflow"])


def test_weights_and_biases_without_an_account_says_what_to_do(
    client: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import wandb

    def refuse(**_: Any) -> None:
        raise wandb.errors.UsageError("No API key configured.")

    fake = SimpleNamespace(init=refuse, errors=wandb.errors)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with pytest.raises(SettingsError, match=r"API key configured\. WANDB_MODE=offline needs no"):
        Tracking(["mlflow", "wandb"]).start(tmp_path.joinpath, "mine")
    assert [run.info.status for run in runs_of(client, "fedhql")] == ["FINISHED"]  # it is closed


def test_a_tool_that_fails_does_not_end_the_run_and_is_named_once(
    client: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write, asked = type(client).log_batch, Counter[str]()

    def log_batch(self: Any, run: str, **figures: Any) -> None:
        asked["log_batch"] += 1
        if asked["log_batch"] > 2:
            raise mlflow.MlflowException("the server is down")
        write(self, run, **figures)

    monkeypatch.setattr(type(client), "log_batch", log_batch)
    fedhql.study(
        ["tabular"], ENV, BUDGET, settings=QUICK, arms=["fedhql"], out=tmp_path / "mine",
        track=["mlflow", "tensorboard"], jobs=0, progress=False,
    )  # fmt: skip
    assert (tmp_path / "mine" / "cells" / "fedhql" / "seed0" / "result.json").exists()
    assert asked["log_batch"] == 3
    assert [record.message for record in caplog.records if "tracking" in record.message] == [
        "tracking with mlflow fails, and the work goes on without it: "
        "MlflowException: the server is down"
    ]
    # The other tool gets the figures of the later rounds, too.
    (events,) = (tmp_path / "mine" / "tensorboard" / "fedhql" / "seed0" / "server").iterdir()
    assert events.read_bytes().count(b"federation/loss") > 2


def test_cells_share_what_has_failed(client: Any, tmp_path: Path) -> None:
    tracking = Tracking(["mlflow"])
    (one,), (other,) = (tracking.start((tmp_path / cell).joinpath, cell) for cell in "ab")
    (first, second) = runs_of(client, "fedhql")
    one.write("server", {"federation/loss": 0.5}, 1)
    for run in (first, second):
        client.delete_run(run.info.run_id)  # MLflow then refuses figures
    one.write("server", {"federation/loss": 0.5}, 2)
    for run in (first, second):
        client.restore_run(run.info.run_id)
    other.write("server", {"federation/loss": 0.5}, 2)
    other.close()
    metrics = [run.data.metrics for run in runs_of(client, "fedhql")]
    assert sorted(metrics, key=len) == [{}, {"server/federation/loss": 0.5}]
    assert tracking.start((tmp_path / "c").joinpath, "c") == []


@pytest.fixture
def requests_of_a_broken_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Serve nothing but errors as the tracking server, and return the paths that it is asked."""
    paths: list[str] = []

    class Broken(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_error(503)

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Broken) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_JITTER", "0")
        yield paths
        server.shutdown()


@pytest.mark.parametrize(("retries", "expected"), [(None, 3), ("1", 2)])
def test_a_server_that_is_down_is_left_out_after_few_requests(
    retries: str | None,
    expected: int,
    requests_of_a_broken_server: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for variable in ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"):
        monkeypatch.setenv(variable, retries or "")
        if retries is None:
            monkeypatch.delenv(variable)
    assert Tracking(["mlflow"]).start(tmp_path.joinpath, "mine") == []
    assert len(requests_of_a_broken_server) == expected
    assert "tracking with mlflow fails, and the work goes on without it" in caplog.text
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == (retries or "10")


def test_mlflow_gets_metrics_and_a_resumed_run_continues(client: Any, tmp_path: Path) -> None:
    for step in (200, 400):
        tracker = MlflowTracker(tmp_path / "kept", "mine fedhql/seed0", wall_clock=lambda: 1.5)
        assert [run.info.status for run in runs_of(client, "fedhql")] == ["RUNNING"]
        tracker.write("agent1, after rounds", {"eval/mean_reward": 9.0}, step)
        tracker.close()
    (run,) = runs_of(client, "fedhql")
    assert (run.info.run_name, run.info.status) == ("mine fedhql/seed0", "FINISHED")
    history = client.get_metric_history(run.info.run_id, "agent1_ after rounds/eval/mean_reward")
    assert [(each.value, each.timestamp, each.step) for each in history] == [
        (9.0, 1_500, 200),
        (9.0, 1_500, 400),
    ]


@pytest.mark.usefixtures("client")
def test_a_resume_with_another_mlflow_names_the_file_of_the_id(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    MlflowTracker(tmp_path / "mlflow", "mine").close()
    other = (tmp_path / "other store").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", other)
    with pytest.raises(SettingsError) as raised:
        Tracking(["mlflow"]).start(tmp_path.joinpath, "mine")
    path = tmp_path / "mlflow" / "run_id"
    assert str(raised.value).startswith(f"{path}: MLflow at {other} has no run {path.read_text()};")


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
        (tracker,) = Tracking(["wandb"]).start(tmp_path.joinpath, "mine fedhql/seed0")
        tracker.write("server", {"federation/loss": 0.5}, 200)
        tracker.close()
    ids = {file.stem for file in tmp_path.rglob("*.wandb")}
    assert ids == {f"run-{(tmp_path / 'wandb' / 'run_id').read_text()}"}

"""MLflow: one MLflow run for each cell or member, in the experiment that its variables name."""

import os
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from fedhql.errors import SettingsError
from fedhql.storage.files import kept_id

EXPERIMENT_VARIABLE, EXPERIMENT = "MLFLOW_EXPERIMENT_NAME", "fedhql"  # and the default
# By MLflow's own defaults, a run waits about 20 minutes for a server that is down; by these, 35 s.
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


def load_mlflow() -> None:
    """Load MLflow, and create the experiment before workers do so side by side.

    Raise SettingsError if MLflow has nowhere to write to.
    """
    mlflow = _mlflow()
    try:
        _experiment_id(mlflow.MlflowClient())
    except (mlflow.MlflowException, ImportError) as error:  # a database needs more packages
        uri = mlflow.get_tracking_uri()
        raise SettingsError(
            f"MLflow cannot use {uri}: {error}. Allowed as MLFLOW_TRACKING_URI: "
            "the address of a server; file:DIRECTORY with MLFLOW_ALLOW_FILE_STORE=true; a "
            "database, if the whole of MLflow is installed (pip install mlflow)"
        ) from error


def _mlflow() -> Any:
    for variable, default in PATIENCE.items():
        os.environ.setdefault(variable, default)
    return import_module("mlflow")


def _experiment_id(client: Any) -> str:
    """Return the id of the experiment, which is created if it does not exist."""
    name = os.environ.get(EXPERIMENT_VARIABLE, EXPERIMENT)
    found = client.get_experiment_by_name(name)
    return str(client.create_experiment(name) if found is None else found.experiment_id)


class MlflowTracker:
    """Write scalars as metrics PART/TAG. The tracking server is MLflow's own setting.

    MLflow stores a step twice that is written again after a resume.
    """

    def __init__(
        self, directory: Path, title: str, wall_clock: Callable[[], float] = time.time
    ) -> None:
        """Continue the run whose id `directory` keeps, or create one.

        Raise SettingsError if MLflow does not know that run.
        """
        mlflow, path = _mlflow(), directory / "run_id"
        self._client, self._wall_clock = mlflow.MlflowClient(), wall_clock
        self._metric = import_module("mlflow.entities").Metric
        self._run = kept_id(path, partial(self._create_run, title))
        try:
            self._client.update_run(self._run, status="RUNNING")
        except mlflow.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            raise SettingsError(
                f"{path}: MLflow at {mlflow.get_tracking_uri()} has no run {self._run}; set "
                "MLFLOW_TRACKING_URI as when this run began, or delete the file for a new run there"
            ) from error

    def _create_run(self, title: str) -> str:
        experiment = _experiment_id(self._client)
        return str(self._client.create_run(experiment, run_name=title).info.run_id)

    def write(self, part: str, figures: Mapping[str, float], step: int) -> None:
        now = int(1_000 * self._wall_clock())
        named = {_allowed(f"{part}/{tag}"): float(value) for tag, value in figures.items()}
        metrics = [self._metric(name, value, now, step) for name, value in named.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)


def _allowed(name: str) -> str:
    """Return the name with "_" for what MLflow does not take in one, such as a comma."""
    return re.sub(r"[^\w\-. /]", "_", name)

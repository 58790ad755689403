"""MLflow: one MLflow run for each cell or member, in the experiment that its variables name."""

import os
import re
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from fedhql.errors import SettingsError
from fedhql.storage.files import kept_id

EXPERIMENT_VARIABLE, EXPERIMENT = "MLFLOW_EXPERIMENT_NAME", "fedhql"  # and the default


def load_mlflow() -> Any:
    """Return the experiment's id. The first call creates it, before workers do so side by side.

    Raise SettingsError if MLflow has nowhere to write to.
    """
    mlflow = import_module("mlflow")
    name = os.environ.get(EXPERIMENT_VARIABLE, EXPERIMENT)
    try:
        client = mlflow.MlflowClient()
        found = client.get_experiment_by_name(name)
        return client.create_experiment(name) if found is None else found.experiment_id
    except (mlflow.MlflowException, ImportError) as error:  # a database needs more packages
        uri = mlflow.get_tracking_uri()
        raise SettingsError(
            f"--track mlflow: MLflow cannot use {uri}: {error}. Allowed as MLFLOW_TRACKING_URI: "
            "the address of a server; file:DIRECTORY with MLFLOW_ALLOW_FILE_STORE=true; a "
            "database, if the whole of MLflow is installed (pip install mlflow)"
        ) from error


class MlflowTracker:
    """Write scalars as metrics PART/TAG. The tracking server is MLflow's own setting."""

    def __init__(
        self, directory: Path, title: str, wall_clock: Callable[[], float] = time.time
    ) -> None:
        """Continue the run whose id `directory` keeps, or create one."""
        self._client, self._wall_clock = import_module("mlflow").MlflowClient(), wall_clock
        self._metric = import_module("mlflow.entities").Metric
        self._run = kept_id(
            directory / "run_id",
            lambda: str(self._client.create_run(load_mlflow(), run_name=title).info.run_id),
        )

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

"""Tools that a run's scalars also go to, by name: one record each, behind one small interface."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from fedhql.errors import MissingExtra, SettingsError
from fedhql.storage.mlflow_tracker import MlflowTracker, load_mlflow
from fedhql.storage.tensorboard import TensorBoard, load_tensorboard
from fedhql.storage.wandb_tracker import WandbTracker, load_wandb


class Tracker(Protocol):
    """Takes the scalars of one cell, or of one member."""

    def write(self, part: str, figures: Mapping[str, float], step: int) -> None:
        """Write figures by their tags. `part` is an agent, the consensus or the server."""

    def close(self) -> None: ...


class TrackerKind(Protocol):
    """Builds the tracker of a cell: its own directory in the run, and the title to show."""

    def __call__(self, directory: Path, title: str) -> Tracker: ...


# The name of the tool, its package and our extra -> what loads the package, what builds a tracker.
TRACKERS: Mapping[str, tuple[Callable[[], object], TrackerKind]] = {
    "tensorboard": (load_tensorboard, TensorBoard),
    "mlflow": (load_mlflow, MlflowTracker),
    "wandb": (load_wandb, WandbTracker),
}


def require_trackers(names: Sequence[str]) -> None:
    """Raise SettingsError for an unknown tool, MissingExtra for one that is not installed."""
    for name in names:
        if name not in TRACKERS:
            raise SettingsError(f"--track {name}: allowed: {', '.join(TRACKERS)}")
        load, _ = TRACKERS[name]
        try:
            load()
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != name:
                raise
            raise MissingExtra.named(name, f"--track {name}") from error


def start_trackers(
    names: Sequence[str], directory_of: Callable[[str], Path], title: str
) -> list[Tracker]:
    """Return the trackers of one cell or member; `directory_of` a tool's name is its directory."""
    return [TRACKERS[name][1](directory_of(name), title) for name in names]

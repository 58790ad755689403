"""Tools that a run's scalars also go to, by name: one record each, behind one small interface."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from fedhql.errors import FedHQLError, MissingExtra, SettingsError
from fedhql.storage.mlflow_tracker import MlflowTracker, load_mlflow
from fedhql.storage.tensorboard import TensorBoard, load_tensorboard
from fedhql.storage.wandb_tracker import WandbTracker, load_wandb

log = logging.getLogger(__name__)
Result = TypeVar("Result")


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
            raise SettingsError(f"track = {name!r}: allowed: {', '.join(TRACKERS)}")
        load, _ = TRACKERS[name]
        try:
            load()
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != name:
                raise
            raise MissingExtra.named(name, f"track = {name!r}") from error


class Tracking:
    """The tools that the cells of one part of a run, or a member, write to.

    If a tool fails, such as a server that is down, the work goes on without it.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(dict.fromkeys(names))
        # Cells share it, so that a grid waits for a server that is down once, not once per cell.
        self._failed: set[str] = set()

    def start(self, directory_of: Callable[[str], Path], title: str) -> list[Tracker]:
        """Return the trackers of one cell or member; `directory_of` a tool's name is its directory.

        Raise SettingsError if the user has to change something.
        """
        trackers: list[Tracker] = []
        with ExitStack() as started:
            for name in self._names:
                build = partial(TRACKERS[name][1], directory_of(name), title)
                if (tracker := self.attempt(name, build)) is not None:
                    trackers.append(_Tolerated(tracker, partial(self.attempt, name)))
                    started.callback(trackers[-1].close)
            started.pop_all()
        return trackers

    def attempt(self, name: str, call: Callable[[], Result]) -> Result | None:
        """Return what the call to a tool returns; None if the tool fails now or has failed."""
        if name in self._failed:
            return None
        try:
            return call()
        except FedHQLError:
            raise
        except Exception as error:  # noqa: BLE001 - a tool may raise anything
            self._failed.add(name)
            why = f"{type(error).__name__}: {error}"
            log.warning("tracking with %s fails, and the work goes on without it: %s", name, why)
            return None


class _Tolerated:
    """A tracker whose errors end nothing."""

    def __init__(self, tracker: Tracker, attempt: Callable[[Callable[[], None]], None]) -> None:
        self._tracker, self._attempt = tracker, attempt

    def write(self, part: str, figures: Mapping[str, float], step: int) -> None:
        self._attempt(partial(self._tracker.write, part, figures, step))

    def close(self) -> None:
        self._attempt(self._tracker.close)

"""An experiment: arms times seeds as cells, in one run directory, resumable at any moment."""

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol

from fedhql.errors import RunDirectoryError
from fedhql.experiments.build import try_out
from fedhql.experiments.cell import Progress, finish_cell
from fedhql.experiments.processes import run_in_processes
from fedhql.experiments.settings import ExperimentSettings, differing_keys, read_settings
from fedhql.results.files import write_atomically
from fedhql.results.run_directory import Cell, RunDirectory, new_manifest


class Display(Protocol):
    """Whoever watches a run."""

    def start(self, cells: Sequence[Cell], budget_env_steps: int) -> None: ...

    def show(self, progress: Progress) -> None: ...


def run_experiment(
    settings: ExperimentSettings,
    directory: RunDirectory,
    *,
    arms: Sequence[str],
    seeds: Sequence[int],
    resume: bool,
    jobs: int,
    tensorboard: bool,
    command: Sequence[str],
    clock: Callable[[], float],
    display: Display,
) -> None:
    """Run what is missing of the cells; `arms` and `seeds` empty means those begun before."""
    if resume and directory.is_run():
        _require_same(settings, directory)
    else:
        directory.require_unused()
        run_in_processes([partial(_try_out, settings)], 1, _log)
    directory.require_writable()
    with directory.locked():
        manifest = _open(directory, settings, arms, seeds)
        cells = [Cell(arm, seed) for arm in manifest["arms"] for seed in manifest["seeds"]]
        left = [cell for cell in cells if not directory.result(cell).exists()]
        session: dict[str, Any] = {
            "command": list(command),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        begun = clock()
        display.start(left, settings.budget.env_steps_per_agent)
        try:
            run_in_processes(
                [partial(_finish, settings, cell, directory, clock, tensorboard) for cell in left],
                jobs,
                partial(_dispatch, display),
            )
        finally:
            directory.merge_records()
            session["wall_seconds"] = round(clock() - begun, 3)
            directory.write_manifest(manifest | {"sessions": [*manifest["sessions"], session]})


def _open(
    directory: RunDirectory, settings: ExperimentSettings, arms: Sequence[str], seeds: Sequence[int]
) -> dict[str, Any]:
    """The manifest, new or from before; arms and seeds asked for now are added to it."""
    before = directory.read_manifest() if directory.is_run() else {}
    manifest = new_manifest(
        arms=[*before.get("arms", []), *arms], seeds=[*before.get("seeds", []), *seeds]
    )
    manifest["sessions"] = before.get("sessions", [])
    write_atomically(directory.settings, settings.as_toml())
    directory.write_manifest(manifest)
    return manifest


def _require_same(settings: ExperimentSettings, directory: RunDirectory) -> None:
    theirs = read_settings(directory.settings.read_text())
    if different := differing_keys(settings, theirs):
        raise RunDirectoryError(
            f"{directory.path} holds another run, whose settings differ: {'; '.join(different)}"
        )


def _try_out(settings: ExperimentSettings, send: Callable[[Any], None]) -> None:
    try_out(settings)


def _finish(
    settings: ExperimentSettings,
    cell: Cell,
    directory: RunDirectory,
    clock: Callable[[], float],
    tensorboard: bool,
    send: Callable[[Any], None],
) -> None:
    finish_cell(settings, cell, directory, report=send, clock=clock, tensorboard=tensorboard)


def _dispatch(display: Display, message: Progress | logging.LogRecord) -> None:
    if isinstance(message, Progress):
        display.show(message)
    else:
        _log(message)


def _log(record: logging.LogRecord) -> None:
    logging.getLogger(record.name).handle(record)

"""An experiment: arms times seeds as cells, in one run directory, resumable at any moment."""

import logging
import shutil
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from fedhql.errors import RunDirectoryError
from fedhql.experiments.build import try_out
from fedhql.experiments.cell import Progress, finish_cell
from fedhql.experiments.processes import run_in_processes
from fedhql.experiments.settings import ExperimentSettings, differing_keys, read_settings
from fedhql.results.files import write_atomically
from fedhql.results.run_directory import ARMS, Cell, RunDirectory, platform_facts
from fedhql.results.summary import write_summary


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
    started: datetime,
    clock: Callable[[], float],
    display: Display,
) -> None:
    """Run what is missing of arms x seeds; those of a run that is resumed are added to them."""
    _require_ours(directory, settings, resume)
    if not directory.is_run():  # so that a mistake leaves no directory behind
        run_in_processes([partial(_try_out, settings)], 1, _log)
    with directory.locked():
        _require_ours(directory, settings, resume)  # another may have been quicker
        manifest = _manifest(directory, arms, seeds)
        session = {"command": list(command), "started": started.isoformat(timespec="seconds")}
        session |= platform_facts()
        write_atomically(directory.settings, settings.as_toml())
        _write_manifest(directory, manifest, session)

        cells = [Cell(arm, seed) for arm in manifest["arms"] for seed in manifest["seeds"]]
        left = [cell for cell in cells if not directory.result(cell).exists()]
        for cell in set(cells) - set(left):  # killed when it had just finished
            shutil.rmtree(directory.checkpoints(cell), ignore_errors=True)
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
            write_summary(directory)
            _write_manifest(directory, manifest, session | {"wall_seconds": clock() - begun})


def _require_ours(directory: RunDirectory, settings: ExperimentSettings, resume: bool) -> None:
    """The directory is unused, or it is to be resumed and holds the very same experiment."""
    if not (resume and directory.is_run()):
        directory.require_unused()
        return
    theirs = read_settings(directory.settings.read_text())
    if different := differing_keys(settings, theirs):
        raise RunDirectoryError(
            f"{directory.path} holds another run, whose settings differ: {'; '.join(different)}"
        )


def _manifest(directory: RunDirectory, arms: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    before = directory.read_manifest() if directory.is_run() else {}
    return {
        "arms": sorted({*before.get("arms", []), *arms}, key=ARMS.index),
        "seeds": sorted({*before.get("seeds", []), *seeds}),
        "sessions": before.get("sessions", []),
    }


def _write_manifest(
    directory: RunDirectory, manifest: dict[str, Any], session: dict[str, Any]
) -> None:
    """With this session as the last; what a reader looks for first stands at the top."""
    sessions = [*manifest["sessions"], session]
    first = {key: value for key, value in sessions[0].items() if key != "wall_seconds"}
    total = {"wall_seconds": sum(each.get("wall_seconds", 0.0) for each in sessions)}
    directory.write_manifest(first | total | manifest | {"sessions": sessions})


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
    try:
        finish_cell(settings, cell, directory, report=send, clock=clock, tensorboard=tensorboard)
    except Exception as error:
        error.add_note(f"in {cell}")
        raise


def _dispatch(display: Display, message: Progress | logging.LogRecord) -> None:
    if isinstance(message, Progress):
        display.show(message)
    else:
        _log(message)


def _log(record: logging.LogRecord) -> None:
    logging.getLogger(record.name).handle(record)

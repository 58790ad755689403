"""An experiment: arms times seeds as cells, in one run directory, resumable at any moment."""

import logging
import shutil
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from fedhql.engines.cell_records import Progress
from fedhql.engines.choice import Engine, choose_engine
from fedhql.engines.grid_plan import Device, plan_grids
from fedhql.engines.jax_setup import prepare_jax
from fedhql.engines.work import Agents, Executor, Send, Work
from fedhql.errors import RunDirectoryError
from fedhql.results.summary import write_summary
from fedhql.settings.experiment import differing_keys, read_settings
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.arm_names import order
from fedhql.storage.files import write_atomically
from fedhql.storage.run_directory import Cell, RunDirectory, platform_facts

log = logging.getLogger(__name__)


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
    engine: str,
    resume: bool,
    executor: Executor,
    tensorboard: bool,
    command: Sequence[str],
    started: datetime,
    clock: Callable[[], float],
    display: Display,
) -> None:
    """Run what is missing of arms x seeds; those of a run that is resumed are added to them."""
    _require_ours(directory, settings, resume)
    _warn_of_late_learners(settings)
    chosen = _engine(directory, settings, engine)
    facts = {}
    if chosen == "compiled" or not directory.is_run():
        facts = _facts(settings, chosen, executor, directory)
    with directory.locked():
        _require_ours(directory, settings, resume)  # another may have been quicker
        manifest = _manifest(directory, arms, seeds) | {"engine": chosen}
        session = {"command": list(command), "started": started.isoformat(timespec="seconds")}
        session |= platform_facts() | executor.facts()
        write_atomically(directory.settings, settings.as_toml())
        _write_manifest(directory, manifest, session)

        cells = [Cell(arm, seed) for arm in manifest["arms"] for seed in manifest["seeds"]]
        left = [cell for cell in cells if not directory.result(cell).exists()]
        for cell in set(cells) - set(left):  # killed when it had just finished
            shutil.rmtree(directory.checkpoints(cell), ignore_errors=True)
        begun = clock()
        jobs, memories = executor.capacity(settings, on_cpu=facts.get("is_cpu", True))
        how = partial(_finish_cell, settings, clock, tensorboard, executor.agents)
        work = [Work(partial(how, cell), [cell], _checkpoints(directory, cell)) for cell in left]
        if chosen == "compiled":
            device = Device(**facts | {"memory_bytes": facts["memory_bytes"] * memories})
            grids = plan_grids(settings, directory, left, jobs, device)
            work = [
                Work(
                    partial(_finish_grid, settings, clock, tensorboard, cells, home.name),
                    cells,
                    home.relative_to(directory.path).as_posix(),
                    on_gpu=not device.is_cpu,
                )
                for cells, home in grids
            ]
            # A grid goes on with all its lanes, also with one that ended after its checkpoint.
            left = list(dict.fromkeys([*left, *(cell for cells, _ in grids for cell in cells)]))
        display.start(left, settings.budget.env_steps_per_agent)
        try:
            executor.run(work, jobs, directory, partial(_dispatch, display))
        finally:
            directory.merge_records()
            write_summary(directory)
            _write_manifest(directory, manifest, session | {"wall_seconds": clock() - begun})


def _warn_of_late_learners(settings: ExperimentSettings) -> None:
    """A budget is easily lowered below it."""
    budget = settings.budget.env_steps_per_agent
    agents = zip(settings.agent_names, settings.agents, strict=True)
    late = [name for name, agent in agents if agent.options.get("learning_starts", 0) >= budget]
    if late:
        log.warning(
            "%s will not learn by themselves: learning_starts is not below the budget of %s env "
            "steps; lower it with --set agents.learning_starts=N",
            ", ".join(late),
            f"{budget:,}",
        )


def _engine(directory: RunDirectory, settings: ExperimentSettings, wanted: str) -> Engine:
    """A run is finished by the engine that began it: their checkpoints differ."""
    if not directory.is_run():
        return choose_engine(settings, wanted)
    before: Engine = directory.read_manifest().get("engine", "messages")
    if wanted not in ("auto", before):
        raise RunDirectoryError(
            f"{directory.path} was begun with --engine {before} and is finished with it"
        )
    return choose_engine(settings, before)


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
        "arms": sorted({*before.get("arms", []), *arms}, key=order),
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


def _checkpoints(directory: RunDirectory, cell: Cell) -> str:
    return directory.checkpoints(cell).relative_to(directory.path).as_posix()


def _facts(
    settings: ExperimentSettings, engine: Engine, executor: Executor, directory: RunDirectory
) -> dict[str, Any]:
    """Try the experiment out, so that a mistake leaves no directory behind."""
    told: list[Any] = []
    gpus, _ = executor.capacity(settings, on_cpu=False)
    attempt = Work(partial(_try_out, settings, engine, executor.agents), on_gpu=gpus > 0)
    executor.run([attempt], 1, directory, told.append)
    for record in told[:-1]:
        _log(record)
    facts: dict[str, Any] = told[-1]
    return facts


def _try_out(
    settings: ExperimentSettings, engine: Engine, agents: Agents, _: RunDirectory, send: Send
) -> None:
    """In a process of its own, as all that loads an environment or a framework."""
    from fedhql.engines.build import observation_size
    from fedhql.engines.jax_setup import device_facts

    if engine == "messages":
        with agents() as gather:
            gather(settings, 0, lambda env_steps: None).close()
        send({})
    else:
        send(device_facts() | {"observation_size": observation_size(settings)})


def _finish_cell(
    settings: ExperimentSettings,
    clock: Callable[[], float],
    tensorboard: bool,
    agents: Agents,
    cell: Cell,
    directory: RunDirectory,
    send: Send,
) -> None:
    from fedhql.engines.cell_run import finish_cell

    prepare_jax()
    try:
        with agents() as gather:
            finish_cell(
                settings,
                cell,
                directory,
                report=send,
                clock=clock,
                tensorboard=tensorboard,
                gather=gather,
            )
    except Exception as error:
        error.add_note(f"in {cell}")
        raise


def _finish_grid(
    settings: ExperimentSettings,
    clock: Callable[[], float],
    tensorboard: bool,
    cells: Sequence[Cell],
    home: str,
    directory: RunDirectory,
    send: Send,
) -> None:
    from fedhql.engines.grid_run import finish_grid

    prepare_jax()
    finish_grid(
        settings,
        cells,
        directory,
        directory.grids() / home,
        report=send,
        clock=clock,
        tensorboard=tensorboard,
    )


def _dispatch(display: Display, message: Progress | logging.LogRecord) -> None:
    if isinstance(message, Progress):
        display.show(message)
    else:
        _log(message)


def _log(record: logging.LogRecord) -> None:
    logging.getLogger(record.name).handle(record)

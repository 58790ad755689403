"""Run an experiment: one cell for each arm and seed, in a run directory that can be resumed."""

import logging
import shutil
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from fedhql.engines.cell_records import Progress
from fedhql.engines.choice import AUTO, choose_engine, engine_named, engine_that_places_agents
from fedhql.engines.engine import DeviceFacts, Engine, Recording
from fedhql.engines.work import Agents, Executor, Send, Work
from fedhql.errors import RunDirectoryError
from fedhql.results.notes import has_no_round
from fedhql.results.summary import write_summary
from fedhql.settings.experiment import differing_keys, read_settings
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.arm_names import INDEPENDENT, order
from fedhql.storage.files import write_atomically
from fedhql.storage.run_directory import Cell, RunDirectory, platform_facts

log = logging.getLogger(__name__)


class Display(Protocol):
    """Shows the progress of a run."""

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
    track: Sequence[str],
    command: Sequence[str],
    started: datetime,
    clock: Callable[[], float],
    display: Display,
    after_message: Callable[[], None] = lambda: None,
) -> None:
    """Run the unfinished cells of arms x seeds, and of the arms and seeds of a resumed run.

    `after_message` is called after each message from a worker. Raise RunDirectoryError if the
    directory is in use or holds another experiment.
    """
    _require_same_experiment(directory, settings, resume)
    _warn_of_late_learners(settings)
    chosen = _engine(directory, settings, engine)
    computes, facts = engine_named(chosen), DeviceFacts()
    if computes.needs_facts or not directory.is_run():
        facts = _tried_out(settings, computes, executor, directory)
    with directory.locked():
        # Again: another process may have written to the directory meanwhile.
        _require_same_experiment(directory, settings, resume)
        manifest = _manifest(directory, arms, seeds) | {"engine": chosen}
        _warn_of_arms_without_exchange(settings, manifest["arms"])
        session = {"command": list(command), "started": started.isoformat(timespec="seconds")}
        session |= platform_facts() | executor.facts()
        write_atomically(directory.settings, settings.as_toml())
        _write_manifest(directory, manifest, session)

        left = cells_left(directory, manifest["arms"], manifest["seeds"])
        for cell in set(directory.cells()) - set(left):  # the run was killed just after it finished
            shutil.rmtree(directory.checkpoints(cell), ignore_errors=True)
        begun = clock()
        recording = Recording(clock, track)
        work = computes.plan(settings, directory, left, executor, facts=facts, recording=recording)
        # A resumed part also reruns a cell that finished after the part's last checkpoint.
        shown = dict.fromkeys([*left, *(cell for part in work for cell in part.cells)])
        display.start(list(shown), settings.budget.env_steps_per_agent)

        def take(message: Any) -> None:
            _dispatch(display, message)
            after_message()

        try:
            jobs, _ = executor.capacity(settings, on_cpu=facts.is_cpu)
            executor.run(work, jobs, directory, take)
        finally:
            directory.merge_records()
            write_summary(directory)
            _write_manifest(directory, manifest, session | {"wall_seconds": clock() - begun})


def cells_left(directory: RunDirectory, arms: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
    """Return the cells that run next: of these arms and seeds and the run's, without a result."""
    manifest = _manifest(directory, arms, seeds)
    cells = [Cell(arm, seed) for arm in manifest["arms"] for seed in manifest["seeds"]]
    return [cell for cell in cells if not directory.result(cell).exists()]


def _warn_of_arms_without_exchange(settings: ExperimentSettings, arms: Sequence[str]) -> None:
    """Warn of federated arms whose agents learn nothing from each other."""
    of_run = settings.model_dump(mode="json")
    federated = [arm for arm in arms if arm != INDEPENDENT]
    if without := [arm for arm in federated if has_no_round(of_run, arm)]:
        log.warning(
            "no round takes place in %s: the budget of %s env steps ends with the first phase of "
            "self-learning; lower the setting federation.self_learning_env_steps, now %s",
            ", ".join(without),
            f"{settings.budget.env_steps_per_agent:,}",
            f"{settings.federation.self_learning_env_steps:,}",
        )
    if len(settings.agents) == 1 and (left := [arm for arm in federated if arm not in without]):
        log.warning(
            "one agent has nobody to learn from: its rounds in %s use its own values alone; "
            "a federation needs two agents or more",
            ", ".join(left),
        )


def _warn_of_late_learners(settings: ExperimentSettings) -> None:
    """Warn of agents that the budget is too small for: learning_starts, target_update_interval."""
    budget = settings.budget.env_steps_per_agent
    for option, consequence in (
        ("learning_starts", "training never starts"),
        # Improvements may update it: the agent federated would gain by that alone.
        ("target_update_interval", "alone, the target network is never updated"),
    ):
        agents = zip(settings.agent_names, settings.agents, strict=True)
        late = [name for name, agent in agents if agent.options.get(option, 0) >= budget]
        if late:
            log.warning(
                "%s: %s; %s must be below the budget of %s env steps; lower the setting agents.%s",
                ", ".join(late),
                consequence,
                option,
                f"{budget:,}",
                option,
            )


def _engine(directory: RunDirectory, settings: ExperimentSettings, wanted: str) -> str:
    """Return the engine's name. A run keeps its engine, because their checkpoints differ."""
    if not directory.is_run():
        return choose_engine(settings, wanted)
    before = engine_of(directory)
    if wanted not in (AUTO, before):
        raise RunDirectoryError(
            f"{directory.path} was begun with engine = {before!r} and must be resumed with it"
        )
    return choose_engine(settings, before)


def engine_of(directory: RunDirectory) -> str:
    """Return the engine that began a run; manifests older than the compiled engine name none."""
    return directory.read_manifest().get("engine", engine_that_places_agents())


def _require_same_experiment(
    directory: RunDirectory, settings: ExperimentSettings, resume: bool
) -> None:
    """Raise unless the directory is unused, or is resumed and holds the same experiment."""
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
    """Write the manifest with this session as the last, and the most wanted facts at the top."""
    sessions = [*manifest["sessions"], session]
    first = {key: value for key, value in sessions[0].items() if key != "wall_seconds"}
    total = {"wall_seconds": sum(each.get("wall_seconds", 0.0) for each in sessions)}
    directory.write_manifest(first | total | manifest | {"sessions": sessions})


def _tried_out(
    settings: ExperimentSettings, engine: Engine, executor: Executor, directory: RunDirectory
) -> DeviceFacts:
    """Try the experiment out in a worker, so that a mistake leaves no directory behind."""
    found: list[DeviceFacts] = []

    def take(message: DeviceFacts | logging.LogRecord) -> None:
        if isinstance(message, DeviceFacts):
            found.append(message)
        else:
            _log(message)

    gpus, _ = executor.capacity(settings, on_cpu=False)
    attempt = Work(
        partial(_try_out, settings, engine, executor.agents),
        on_gpu=gpus > 0,
        modules=engine.modules(settings),
    )
    executor.run([attempt], 1, directory, take)
    (facts,) = found
    return facts


def _try_out(
    settings: ExperimentSettings, engine: Engine, agents: Agents, _: RunDirectory, send: Send
) -> None:
    send(engine.try_out(settings, agents))


def _dispatch(display: Display, message: Progress | logging.LogRecord) -> None:
    if isinstance(message, Progress):
        display.show(message)
    else:
        _log(message)


def _log(record: logging.LogRecord) -> None:
    logging.getLogger(record.name).handle(record)

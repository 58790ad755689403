"""Run an experiment: choose its directory, executor and display, and return its result."""

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from fedhql.api.given_agents import GivenAgents
from fedhql.api.progress import display_for
from fedhql.api.result import Result
from fedhql.cluster.mirror import local_directory
from fedhql.cluster.session import Cluster
from fedhql.engines.choice import AUTO, engine_named, engine_that_places_agents
from fedhql.engines.work import Executor
from fedhql.errors import RunDirectoryError, SettingsError
from fedhql.results.load import load_run
from fedhql.running.executors import LOCAL, RAY, cores, executor_on
from fedhql.running.local_executor import InProcessExecutor
from fedhql.running.ray_executors import RayActorExecutor, RayTaskExecutor
from fedhql.running.run import cells_left, engine_of, run_experiment
from fedhql.settings.arms import require_arm
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.arm_names import FEDHQL, INDEPENDENT
from fedhql.storage.run_directory import Cell, RunDirectory
from fedhql.storage.tracking import require_trackers


@dataclass(frozen=True)
class RunOptions:
    """How and where an experiment runs, in the words of `fedhql run`."""

    engine: str = AUTO
    on: str = LOCAL
    address: str | None = None
    jobs: int | None = None
    resume: bool = False
    figures: bool = False
    track: Sequence[str] = ()


def run_study(
    settings: ExperimentSettings,
    given: GivenAgents,
    *,
    arms: Sequence[str] | None,
    seeds: Sequence[int] | None,
    more_arms: Sequence[str] = (),
    options: RunOptions,
    out: str | Path | None,
    progress: object,
) -> Result:
    """Run the unfinished cells of arms x seeds; None stands for the default or a resumed run's.

    `more_arms` run besides, whatever `arms` are.
    """
    require_lasting(str(out))
    require_trackers(options.track)
    if options.engine != AUTO:
        engine_named(options.engine)  # raises if there is no such engine
    with (
        _home(out, options.resume) as home,
        local_directory(home, time.monotonic) as (path, mirror),
    ):
        directory = RunDirectory(path)
        going_on = options.resume and directory.is_run()
        engine = options.engine
        if options.on == RAY and engine == AUTO:
            engine = engine_of(directory) if going_on else engine_that_places_agents()
        if arms is None:
            arms = [] if going_on else [INDEPENDENT, FEDHQL]
        if seeds is None:
            seeds = [] if going_on else [0]
        arms = [require_arm(settings, arm) for arm in (*arms, *more_arms)]
        learned_in = Cell(arms[0], seeds[0]) if given.live else None
        if learned_in and going_on:
            _require_only(directory, learned_in)
        with display_for(progress) as display, _executor(given, options, engine) as executor:
            run_experiment(
                settings,
                directory,
                arms=arms,
                seeds=seeds,
                engine=engine,
                resume=options.resume,
                executor=executor,
                track=options.track,
                command=sys.argv,
                started=datetime.now(UTC),
                clock=time.monotonic,
                display=display,
                after_message=mirror.send_if_due if mirror else lambda: None,
            )
        run = load_run(path)
        if options.figures:
            # Matplotlib takes a second to load.
            from fedhql.results.figures import draw_figures

            draw_figures([run], directory.figures, np.random.default_rng(0))
        if mirror:  # the local copy is removed here, and policies are read later
            path = shutil.copytree(path, Path(tempfile.mkdtemp(prefix="fedhql-")) / path.name)
    temporary = out is None or mirror is not None
    return Result(path, run, given, learned_in=learned_in, temporary=temporary)


def require_lasting(out: str) -> None:
    """Raise SettingsError if results in `out` would be gone when this process ends."""
    if "memory://" in out:
        raise SettingsError(
            f"{out}: files in memory are lost when the process ends; allowed: a directory, "
            "or a URL of a store such as s3://bucket/run"
        )


@contextmanager
def _home(out: str | Path | None, resume: bool) -> Iterator[str]:
    """Yield the directory or URL of the run. Without `out`, make one; an error removes it."""
    if out is None:
        if resume:
            raise SettingsError("resume=True continues the run in `out`; give its directory as out")
        temporary = tempfile.mkdtemp(prefix="fedhql-")
        try:
            yield str(Path(temporary) / "run")  # the name of the run, in its report
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return
    try:
        yield str(out)
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(
            f"fedhql was interrupted; resume=True continues, and fedhql.load({str(out)!r}) has the "
            "evaluations so far"
        )
        raise


def _require_only(directory: RunDirectory, wanted: Cell) -> None:
    """Raise unless only this cell is left to run: live agents would learn in every other, too."""
    left = cells_left(directory, [wanted.arm], [wanted.seed])
    if wanted not in left:
        raise RunDirectoryError(
            f"{directory.path}: {wanted} has finished, so live agents would stay as they are; "
            "fedhql.load reads it"
        )
    if others := [str(cell) for cell in left if cell != wanted]:
        raise RunDirectoryError(
            f"{directory.path}: {', '.join(others)} would run besides {wanted}, and live agents "
            "learn only once; allowed: a directory in which nothing else is left to run"
        )


@contextmanager
def _executor(given: GivenAgents, options: RunOptions, engine: str) -> Iterator[Executor]:
    def on_ray(cluster: Cluster) -> Executor:
        if engine_named(engine).places_agents:
            return RayActorExecutor(cluster, cores() if options.jobs is None else options.jobs)
        return RayTaskExecutor(cluster, time.monotonic)

    if not given.kinds_not_importable:
        with executor_on(options.on, options.address, options.jobs, on_ray) as executor:
            yield executor
    elif options.jobs or options.on != LOCAL:
        asked = f"jobs = {options.jobs}" if options.on == LOCAL else f"on = {options.on!r}"
        raise SettingsError(
            f"{asked}: other processes cannot import {given.kinds_not_importable[0]}, so it runs "
            "in this one; move the class to a module, or leave that out"
        )
    else:
        yield InProcessExecutor(given.source)

"""Commands about several arms or runs at once: suite, report, compare, archive."""

import shutil
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer
from rich.console import Console

from fedhql.api.progress import BAR, LiveDisplay
from fedhql.api.run_study import require_lasting
from fedhql.cli.common import (
    INTERRUPTED,
    Address,
    On,
    ProgressStyle,
    command_to_continue,
    draw,
    engine_and_executor,
    fail,
    parse_seeds,
    print_notes,
    require_style,
    rng,
    warnings_to_stderr,
)
from fedhql.cli.display import print_table
from fedhql.cluster.mirror import local_directory
from fedhql.cluster.session import Cluster
from fedhql.engines.choice import AUTO, ENGINES
from fedhql.engines.work import Executor
from fedhql.errors import RunDirectoryError, SettingsError
from fedhql.results.answer import answer
from fedhql.results.archive import write_archive
from fedhql.results.attacks import attack_scores, attack_tables
from fedhql.results.compare import compare_tables
from fedhql.results.curves import Run
from fedhql.results.load import load_run, load_runs
from fedhql.results.reading_answers import Answers, read_readings
from fedhql.results.report import paper_tables, write_report
from fedhql.results.statistics import LEVEL, require_level
from fedhql.results.tables import welfare_table
from fedhql.running.executors import LOCAL, RAY, executor_on
from fedhql.running.ray_executors import RayTaskExecutor
from fedhql.running.suite import SUITES, SuiteRun, plan_suite, run_suite
from fedhql.storage.files import write_atomically

Level = Annotated[float, typer.Option(metavar="P", help="Level of the t-intervals over seeds.")]


def suite(
    name: Annotated[str, typer.Argument(metavar="SUITE", help=", ".join(SUITES))],
    out: Annotated[
        str,
        typer.Option(
            metavar="DIR", help="The directory for runs and the report: a path or any fsspec URL."
        ),
    ],
    budget_fraction: Annotated[
        float, typer.Option(metavar="F", help="Fraction of the paper's budget for every agent.")
    ] = 1.0,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="0,1,...",
            help="Every arm runs once with each seed.  [default: 0 to 4; readings: 100 to 109]",
        ),
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ARM",
            help="independent, fedhql (λ = 1), exploration=3, ... Repeat for several."
            "  [default: independent and λ = 0, 1, 3, 5, 10; ablations and plus: independent "
            "and fedhql; attacks: the same, and each attack with 1 and 2 attackers; "
            "readings: independent and λ = 0, 1, 3]",
        ),
    ] = None,
    run: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Leave out runs that match no pattern, such as 'cartpole-*'. Repeat for several.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, as in `run`."),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="|".join((AUTO, *ENGINES)),
            help="What computes the runs, as in `run`. With --on ray, arms and seeds are tasks.",
        ),
    ] = AUTO,
    on: On = LOCAL,
    address: Address = None,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="As in `run`.  [default: all cores]")
    ] = None,
    progress: ProgressStyle = BAR,
) -> None:
    """Run a suite of experiments, then draw figures and write a report.

    Each experiment has its own run directory in DIR. A second call runs only what is missing.
    """
    console = Console()

    engine, on = engine_and_executor(engine, on)
    require_style(progress)
    require_lasting(out)
    if on == RAY and jobs is not None:
        raise SettingsError(
            "--jobs is for this machine; on Ray, the nodes' cores or GPUs set the number"
        )

    def on_ray(cluster: Cluster) -> Executor:
        return RayTaskExecutor(cluster, time.monotonic)

    def draw_its_figures(finished: SuiteRun) -> None:
        if len(runs) > 1:  # else the figures of the report are copied below
            directory = finished.directory
            draw([load_run(directory.path)], directory.figures)

    with local_directory(out, time.monotonic) as (path, mirror):
        runs = plan_suite(
            name,
            path,
            budget_fraction=budget_fraction,
            arms=arm or [],
            seeds=parse_seeds(seeds) if seeds else [],
            overrides=settings or [],
            only=run or [],
        )
        try:
            with (
                LiveDisplay(
                    console, overall=sum(each.env_steps_left() for each in runs), style=progress
                ) as display,
                executor_on(on, address, jobs, on_ray) as executor,
            ):
                warnings_to_stderr()
                run_suite(
                    runs,
                    engine=engine,
                    executor=executor,
                    command=sys.argv,
                    started=datetime.now(UTC),
                    clock=time.monotonic,
                    display=display,
                    after_message=mirror.send_if_due if mirror else lambda: None,
                    after_each=draw_its_figures,
                )
        except KeyboardInterrupt:
            fail(f"interrupted; go on: {command_to_continue(sys.argv)}", INTERRUPTED)
        finished = [load_run(each.directory.path) for each in runs]
        page = _report(finished, path / "report", LEVEL, console)
        if len(runs) == 1:
            shutil.copytree(path / "figures", runs[0].directory.figures, dirs_exist_ok=True)
    _say_where(console, f"{out.rstrip('/')}/{page.name}")


def report(
    directories: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...",
            help="Runs, or suites of runs; also FILE-readings.csv of an earlier report.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write FILE.html, FILE.md, figures/.  [default: report in the first]",
        ),
    ] = None,
    level: Level = LEVEL,
    at: Annotated[
        float,
        typer.Option(
            metavar="F", help="Fraction of the budget at which attacked arms are compared."
        ),
    ] = 1.0,
) -> None:
    """Write a page about runs: curves, tables, settings and the paper's claims."""
    require_level(level)
    if not 0 < at <= 1:
        raise SettingsError(f"--at {at:g}: allowed: above 0, at most 1")
    console = Console()
    first = directories[0]
    out = out or (
        first / "report"
        if first.suffix != ".csv"
        else first.with_name(first.stem.removesuffix("-readings"))
    )
    files = [path for path in directories if path.suffix == ".csv"]
    runs = load_runs(*(path for path in directories if path not in files))
    _say_where(console, _report(runs, out, level, console, at, read_readings(*files)))


def compare(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR DIR...", help="Runs, or suites of runs.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.md", help="Also write Markdown.")
    ] = None,
    level: Level = LEVEL,
    margin: Annotated[
        float | None,
        typer.Option(
            metavar="RETURN",
            help="Also say whether runs are equivalent to the first: differ by less than this.",
        ),
    ] = None,
) -> None:
    """Compare runs side by side, at the consumption that all of them have reached."""
    require_level(level)
    if margin is not None and not margin > 0:
        raise SettingsError(f"--margin {margin:g}: allowed: a difference of returns above 0")
    runs = load_runs(*directories)
    if len(runs) < 2:
        raise SettingsError("compare takes at least two runs")
    tables = compare_tables(runs, level, margin)
    console = Console()
    for table in tables:
        print_table(console, table)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, "\n".join(table.markdown() for table in tables))


def archive(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Runs, or suites of runs.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Gets a directory for each run.")],
) -> None:
    """Copy what `report` and `compare` need from runs, small enough to commit."""
    runs = load_runs(*directories)
    homes = [out / Path(run.name).name for run in runs]
    for run, home in zip(runs, homes, strict=True):
        if homes.count(home) > 1:
            raise SettingsError(f"{run.name}: another of these runs would also go to {home}")
        if (home / "cells").exists():
            raise RunDirectoryError(f"{home} is a run, not the archive of one; use another --out")
        if (home / "settings.toml").exists() and load_run(home).settings != run.settings:
            raise RunDirectoryError(f"{home} holds another run; use another --out")
    for run, home in zip(runs, homes, strict=True):
        write_archive(run, home)
        typer.echo(f"wrote {home}")


def _report(
    runs: Sequence[Run],
    out: Path,
    level: float,
    console: Console,
    at: float = 1.0,
    kept: Answers = MappingProxyType({}),
) -> Path:
    for run in runs:
        console.print(f"{run.name}: {answer(run, level)}", highlight=False, markup=False)
        print_notes(console, run)
        print_table(console, welfare_table(run, level), run.name)
    for table in attack_tables(attack_scores(runs, at=at, level=level), level):
        print_table(console, table)
    for table in paper_tables(runs, rng(), kept):
        print_table(console, table)
    if runs:
        draw(runs, out.parent / "figures", attacks_at=at)
    page, *_ = write_report(runs, out, rng(), level=level, at=at, kept=kept)
    return page


def _say_where(console: Console, page: object) -> None:
    console.print(f"report: {page}", soft_wrap=True, highlight=False, markup=False)

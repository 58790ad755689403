"""Options and helpers that several commands share."""

import logging
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import numpy as np
import typer
from rich.console import Console

from fedhql.api.progress import SECONDS_BETWEEN_LINES, STYLES
from fedhql.engines.choice import AUTO
from fedhql.errors import SettingsError
from fedhql.results.curves import Run
from fedhql.results.notes import notes
from fedhql.running.executors import EXECUTORS, RAY
from fedhql.storage.tracking import TRACKERS

INTERRUPTED = 130

On = Annotated[
    str,
    typer.Option(
        metavar="|".join(EXECUTORS),
        help="Where the work is done: in processes on this machine, or on a Ray cluster.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT|auto",
        help="For --on ray: the cluster to use. This machine must be one of its nodes."
        "  [default: a new cluster on this machine, stopped at the end]",
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        metavar="|".join(TRACKERS),
        help="Also write scalars there, from now on. Repeat for several. fedhql doctor says which "
        "of them are installed.",
    ),
]
ProgressStyle = Annotated[
    str,
    typer.Option(
        metavar="|".join(STYLES),
        help=f"bar: drawn at a terminal only. lines: a line every {SECONDS_BETWEEN_LINES} s, also "
        "in a file. none: nothing.",
    ),
]


def fail(message: str, code: int) -> NoReturn:
    print(f"fedhql: error: {message}", file=sys.stderr)  # noqa: T201 - plain text on any terminal
    sys.exit(code)


def command_to_continue(argv: Sequence[str]) -> str:
    """Return the command that continues the one in `argv`, as a shell takes it."""
    program, *arguments = argv
    if Path(program).name != "fedhql":
        is_on_path = shutil.which("python") == sys.executable
        words = ["python" if is_on_path else sys.executable, "-m", "fedhql"]
    else:
        words = ["fedhql" if shutil.which("fedhql") == program else program]
    if arguments[:1] == ["run"] and "--resume" not in arguments:
        arguments.append("--resume")
    return shlex.join(words + arguments)


def require_style(progress: str) -> None:
    if progress not in STYLES:
        raise SettingsError(f"--progress {progress}: allowed: {', '.join(STYLES)}")


def parse_seeds(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise SettingsError(f"--seeds {text}: allowed: whole numbers >= 0 with commas, as in 0,1,2")
    return [int(part) for part in parts]


def rng() -> np.random.Generator:
    """Return a generator with a fixed seed, so that the same files give the same page."""
    return np.random.default_rng(0)


def draw(runs: Sequence[Run], home: Path, attacks_at: float = 1.0) -> None:
    # Matplotlib takes a second to load, and every worker process would wait for it.
    from fedhql.results.figures import draw_figures

    draw_figures(runs, home, rng(), attacks_at=attacks_at)


def print_notes(console: Console, run: Run) -> None:
    for note in notes(run):
        console.print(str(note), soft_wrap=True, highlight=False, markup=False)


def engine_and_executor(engine: str, on: str) -> tuple[str, str]:
    """Return --engine and --on. The deprecated `--engine ray` means `--on ray`."""
    if engine == RAY:
        warn("--engine ray is deprecated: write --on ray")
        return AUTO, RAY
    return engine, on


def warn(message: str) -> None:
    print(f"fedhql: warning: {message}", file=sys.stderr)  # noqa: T201 - as `fail`


def warnings_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("fedhql: warning: %(message)s"))
    logging.getLogger("fedhql").addHandler(handler)

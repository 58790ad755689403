"""A run directory: the paths of its files, its lock and its manifest.

settings.toml  manifest.json  evaluations.csv  federation.csv  summary.json  figures/
agents/ARM/seedK/agentN/{best,last}/    the best and the last state of each agent
cells/ARM/seedK/                        one cell: its rows, its checkpoint and its result
grids/K/                                checkpoints of cells that run as lanes of one program
TOOL/ARM/seedK/                         with --track TOOL: event files, or the tool's own run
"""

import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedhql.errors import RESUME, RunDirectoryError
from fedhql.storage.arm_names import order
from fedhql.storage.files import locked, write_atomically
from fedhql.storage.records import EvaluationRow, FederationRow, header

SERVER_JOURNAL = "journal.sqlite"  # in a server's home, which is not a run directory
MEMBER_LEDGER = "member.json"  # in a member's home
LAST = "last"  # the directory of an agent's state at the end
# Their versions can change a result, or what machines send to each other.
PACKAGES = (
    "fedhql",
    "gymnasium",
    "numpy",
    "stable-baselines3",
    "torch",
    "jax",
    "jaxlib",
    "optax",
    "envpool",
    "box2d",
    "box2d-py",
    "ray",
)


@dataclass(frozen=True, order=True)
class Cell:
    """One arm with one seed. Each cell runs, is checkpointed and resumes on its own."""

    arm: str
    seed: int

    def __str__(self) -> str:
        return f"{self.arm}/seed{self.seed}"

    @classmethod
    def parse(cls, name: str) -> "Cell":
        """Return the cell with this name, as `str` gives it."""
        arm, _, seed = name.rpartition("/seed")
        return cls(arm, int(seed))


class RunDirectory:
    """The paths of one run."""

    def __init__(self, path: Path, name: str = "") -> None:
        """`name` is the run's, if `path` is a copy of its directory."""
        self.path, self.name = path, name or path.resolve().name
        self.settings = path / "settings.toml"
        self.manifest = path / "manifest.json"
        self.evaluations = path / "evaluations.csv"
        self.federation = path / "federation.csv"
        self.summary = path / "summary.json"
        self.figures = path / "figures"

    def cell(self, cell: Cell) -> Path:
        return self.path / "cells" / str(cell)

    def checkpoints(self, cell: Cell) -> Path:
        return self.cell(cell) / "checkpoint"

    def result(self, cell: Cell) -> Path:
        """Return the path of the result. It is written last: a cell that has it is finished."""
        return self.cell(cell) / "result.json"

    def refused_answers(self, cell: Cell) -> Path:
        return self.cell(cell) / "refused_answers.json"

    def best_returns(self, cell: Cell) -> Path:
        """Return the path of the mean returns of each agent's best state in fresh episodes."""
        return self.cell(cell) / "best_returns.json"

    def grids(self) -> Path:
        """Return the directory of checkpoints of the compiled engine, which runs cells as lanes."""
        return self.path / "grids"

    def agent(self, cell: Cell, agent: str) -> Path:
        return self.path / "agents" / str(cell) / agent

    def tracked(self, cell: Cell, tool: str) -> Path:
        """Return what --track TOOL writes here."""
        return self.path / tool / str(cell)

    def is_run(self) -> bool:
        return self.manifest.exists()

    def require_run(self) -> None:
        """Raise RunDirectoryError if the directory holds no run."""
        if self.is_run():
            return
        if (self.path / SERVER_JOURNAL).exists():
            raise RunDirectoryError(
                f"{self.path} is the home of a server, not a run: its members keep the agents, and "
                f"it has no arm to compare with. See fedhql status {self.path}, and the files "
                f"{self.evaluations.name} and {self.federation.name} there"
            )
        if member_home(self.path) is not None:
            raise RunDirectoryError(
                f"{self.path} is the home of a member, not a run; allowed: fedhql play and export, "
                "fedhql.load_policy"
            )
        raise RunDirectoryError(f"{self.path} holds no run of fedhql (no {self.manifest.name})")

    def require_unused(self) -> None:
        """Raise RunDirectoryError if the directory holds a run or files of somebody else."""
        if self.is_run():
            raise RunDirectoryError(
                f"{self.path} already holds a run; continue it with {RESUME}, or choose another "
                "directory"
            )
        if self.path.exists() and not self.path.is_dir():
            raise RunDirectoryError(f"{self.path} is a file; choose a directory")
        if self.path.exists() and any(self._foreign()):
            raise RunDirectoryError(
                f"{self.path} is not empty and holds no run of fedhql; choose another directory"
            )

    def _foreign(self) -> Iterator[Path]:
        """Return the entries that a run killed before its manifest was written cannot have left."""
        ours = {self.settings.name, ".lock"}
        return (p for p in self.path.iterdir() if p.name not in ours and p.suffix != ".tmp")

    def cells(self) -> list[Cell]:
        """Return all cells that have begun, in the order of the merged files."""
        found = [
            Cell(path.parent.name, int(path.name.removeprefix("seed")))
            for path in (self.path / "cells").glob("*/seed*")
        ]
        return sorted(found, key=lambda cell: (order(cell.arm), cell.seed))

    def merge_records(self) -> None:
        """Write the rows of all cells into one file for each kind of row."""
        for merged, row_type in (
            (self.evaluations, EvaluationRow),
            (self.federation, FederationRow),
        ):
            parts = (self.cell(cell) / merged.name for cell in self.cells())
            rows = (part.read_text().partition("\n")[2] for part in parts if part.exists())
            write_atomically(merged, header(row_type) + "".join(map(_whole_lines, rows)))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run's lock. Raise RunDirectoryError if it is taken or cannot be written."""
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.path, wait=False))
            except BlockingIOError as error:
                raise RunDirectoryError(f"{self.path} is in use by another fedhql run") from error
            except OSError as error:
                raise RunDirectoryError(
                    f"{self.path} cannot be written: {error.strerror}"
                ) from error
            yield

    def read_manifest(self) -> dict[str, Any]:
        return json.loads(self.manifest.read_text())

    def write_manifest(self, content: dict[str, Any]) -> None:
        write_atomically(self.manifest, json.dumps(content, indent=2) + "\n")


def member_home(path: Path) -> Path | None:
    """Return the member's home that is `path`, or has it as its last state; None if none is."""
    homes = (path, path.parent) if path.name == LAST else (path,)
    return next((home for home in homes if (home / MEMBER_LEDGER).exists()), None)


def _version_reader(packages: tuple[str, ...]) -> Callable[[], dict[str, str]]:
    def read() -> dict[str, str]:
        """Return the versions of the packages that are installed."""
        found = {}
        for package in packages:
            try:
                found[package] = version(package)
            except PackageNotFoundError:
                continue
        return found

    return read


# Ray must be able to send this function by value: see `fedhql.cluster.versions`.
package_versions = _version_reader(PACKAGES)


def platform_facts() -> dict[str, Any]:
    """Return the versions and the machine, for the manifest."""
    return {
        "versions": package_versions(),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": os.cpu_count(),
    }


def _whole_lines(text: str) -> str:
    """Return the text without a last line that is still being written."""
    return text[: text.rfind("\n") + 1]

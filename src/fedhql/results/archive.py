"""What a report needs of a run, small enough to keep in a repository.

settings.toml  manifest.json  curves.csv: a row for each evaluation, a column for each agent
best_returns.csv: the best states, played again in fresh episodes
"""

import csv
import json
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedhql.results.curves import Arms, Curve, Floats, Run
from fedhql.storage.files import write_atomically
from fedhql.storage.run_directory import Cell

CURVES, BEST_RETURNS = "curves.csv", "best_returns.csv"
# A machine's name and a user's paths are nobody's business.
MANIFEST_KEYS = ("arms", "seeds", "engine", "versions", "python", "cores", "wall_seconds")


def write_archive(run: Run, home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    manifest = {key: run.manifest[key] for key in MANIFEST_KEYS if key in run.manifest}
    write_atomically(home / "settings.toml", tomli_w.dumps(run.settings))
    write_atomically(home / "manifest.json", json.dumps(manifest, indent=2) + "\n")
    curves = (
        (arm, seed, f"{consumed:.8g}", *(f"{value:.6g}" for value in returns_N))
        for arm, seeds in run.arms.items()
        for seed, curve in seeds.items()
        for consumed, returns_N in zip(curve.consumed_E, curve.returns_NE.T, strict=True)
    )
    header = ("arm", "seed", "budget_env_steps", *run.agents)
    write_atomically(home / CURVES, _csv(header, curves))
    best = (
        (cell.arm, cell.seed, *(f"{value:.6g}" for value in returns_N))
        for cell, returns_N in run.best_returns.items()
    )
    write_atomically(home / BEST_RETURNS, _csv(("arm", "seed", *run.agents), best))


def read_curves(home: Path) -> Arms:
    """The same evaluations as were archived, to the digits that were kept."""
    found: dict[Cell, list[list[float]]] = {}
    for arm, seed, *numbers in _rows(home / CURVES):
        found.setdefault(Cell(arm, int(seed)), []).append([float(number) for number in numbers])
    arms: Arms = {}
    for cell, rows in found.items():
        table = np.array(rows)
        arms.setdefault(cell.arm, {})[cell.seed] = Curve(table[:, 0], table[:, 1:].T)
    return arms


def read_best_returns(home: Path) -> dict[Cell, Floats]:
    return {
        Cell(arm, int(seed)): np.array([float(number) for number in numbers])
        for arm, seed, *numbers in _rows(home / BEST_RETURNS)
    }


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def _rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        _, *rows = csv.reader(file)
    return rows

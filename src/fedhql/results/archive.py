"""What a report needs of a run, small enough to keep in a repository.

settings.toml  manifest.json  curves.csv: a row for each evaluation, a column for each agent
best_returns.csv: the best states, played again in fresh episodes
measures.csv: what agents expected and got, and their silent units, at the end
"""

import csv
import json
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedhql.results.curves import Curve, Measures, Run
from fedhql.storage.files import write_atomically
from fedhql.storage.records import CONSENSUS, ROUND, SELF_LEARNING
from fedhql.storage.run_directory import Cell

CURVES, BEST_RETURNS, MEASURES = "curves.csv", "best_returns.csv", "measures.csv"
# A machine's name and a user's paths are nobody's business.
MANIFEST_KEYS = ("arms", "seeds", "engine", "versions", "python", "cores", "wall_seconds")


def write_archive(run: Run, home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    manifest = {key: run.manifest[key] for key in MANIFEST_KEYS if key in run.manifest}
    write_atomically(home / "settings.toml", tomli_w.dumps(run.settings))
    write_atomically(home / "manifest.json", json.dumps(manifest, indent=2) + "\n")
    both = {SELF_LEARNING: run.arms, ROUND: run.after_rounds}
    evaluations = (
        (arm, seed, after, *numbers)
        for after, arms in both.items()
        for arm, seeds in arms.items()
        for seed, curve in seeds.items()
        for numbers in _numbers(curve, run.consensus.get(arm, {}).get(seed), after)
    )
    header = ("arm", "seed", "after", "own_env_steps", "budget_env_steps", *run.agents, CONSENSUS)
    write_atomically(home / CURVES, _csv(header, evaluations))
    best = (
        (cell.arm, cell.seed, *map(_short, returns_N))
        for cell, returns_N in run.best_returns.items()
    )
    write_atomically(home / BEST_RETURNS, _csv(("arm", "seed", *run.agents), best))
    measured = (
        (cell.arm, cell.seed, agent, *map(_short, of_agent))
        for cell, of in run.measures.items()
        for agent, *of_agent in zip(
            run.agents, of.start_values_N, of.discounted_N, of.silent_units_N, strict=True
        )
    )
    names = ("start_value", "discounted_return", "silent_units")
    write_atomically(home / MEASURES, _csv(("arm", "seed", "agent", *names), measured))


def _numbers(curve: Curve, consensus: Curve | None, after: str) -> Iterable[Sequence[str]]:
    """Return a row for each evaluation: own steps, consumed steps, agents, consensus policy."""
    nothing = [""] * len(curve.consumed_E)
    own_E = nothing if curve.own_E is None else [f"{own:.8g}" for own in curve.own_E]
    shared_E: Sequence[float | str] = nothing
    if consensus is not None and after == SELF_LEARNING:
        shared_E = consensus.returns_NE[0].tolist()
    rows = zip(own_E, curve.consumed_E, curve.returns_NE.T, shared_E, strict=True)
    for own, consumed, returns_N, shared in rows:
        yield own, f"{consumed:.8g}", *map(_short, [*returns_N, shared])


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def read_archive(home: Path, settings: dict[str, Any], manifest: dict[str, Any]) -> Run:
    """Return the run with the same evaluations as were archived, to the digits that were kept."""
    found: dict[tuple[str, Cell], list[dict[str, str]]] = {}
    for row in _rows(home / CURVES):
        cell = Cell(row["arm"], int(row["seed"]))
        found.setdefault((row.get("after", SELF_LEARNING), cell), []).append(row)
    run = Run(home.resolve().name, settings, manifest, {}, {})
    for (after, cell), rows in found.items():
        arms = run.after_rounds if after == ROUND else run.arms
        arms.setdefault(cell.arm, {})[cell.seed] = _curve(rows, run.agents)
        if rows[0].get(CONSENSUS):
            run.consensus.setdefault(cell.arm, {})[cell.seed] = _curve(rows, [CONSENSUS])
    for row in _rows(home / BEST_RETURNS):
        returns_N = np.array([float(row[agent]) for agent in run.agents])
        run.best_returns[Cell(row["arm"], int(row["seed"]))] = returns_N
    measured: dict[Cell, list[list[float]]] = {}
    for row in _rows(home / MEASURES) if (home / MEASURES).exists() else ():
        *_, start, discounted, silent = row.values()
        figures = [float(start), float(discounted), float(silent)]
        measured.setdefault(Cell(row["arm"], int(row["seed"])), []).append(figures)
    run.measures.update({cell: Measures(*np.array(of).T) for cell, of in measured.items()})
    return run


def _curve(rows: Sequence[dict[str, str]], policies: Sequence[str]) -> Curve:
    own_E = np.array([float(row.get("own_env_steps") or "nan") for row in rows])
    return Curve(
        np.array([float(row["budget_env_steps"]) for row in rows]),
        np.array([[float(row[policy]) for row in rows] for policy in policies]),
        None if np.isnan(own_E).any() else own_E,
    )


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))

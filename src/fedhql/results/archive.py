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

from fedhql.results.curves import Curve, Floats, Measures, Run
from fedhql.storage.files import write_atomically
from fedhql.storage.records import CONSENSUS, ROUND, SELF_LEARNING
from fedhql.storage.run_directory import Cell

CURVES, BEST_RETURNS, MEASURES = "curves.csv", "best_returns.csv", "measures.csv"
# Own and consumed env steps when an evaluation was taken, and at which consumption it was due.
KEYS = ("arm", "seed", "after", "own_env_steps", "taken_env_steps", "budget_env_steps")
# A machine's name and a user's paths are nobody's business.
MANIFEST_KEYS = (
    "arms", "seeds", "engine", "versions", "python", "cores", "wall_seconds", "refused_answers"
)  # fmt: skip


def write_archive(run: Run, home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    manifest = {key: run.manifest[key] for key in MANIFEST_KEYS if key in run.manifest}
    write_atomically(home / "settings.toml", tomli_w.dumps(run.settings))
    write_atomically(home / "manifest.json", json.dumps(manifest, indent=2) + "\n")
    phases = {
        arm: seeds
        for arm, seeds in run.arms.items()
        if not (run.only_after_rounds and arm in run.after_rounds)
    }
    both = {SELF_LEARNING: phases, ROUND: run.after_rounds}
    evaluations = (
        (arm, seed, after, *numbers)
        for after, arms in both.items()
        for arm, seeds in arms.items()
        for seed, curve in seeds.items()
        for numbers in _numbers(
            curve, run.consensus.get(arm, {}).get(seed) if arms is both[run.moment(arm)] else None
        )
    )
    header = (*KEYS, *run.agents, CONSENSUS)
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


def _numbers(curve: Curve, consensus: Curve | None) -> Iterable[Sequence[str]]:
    """Return a row for each evaluation: steps, returns of agents, of the consensus policy."""
    columns = [
        [""] * len(curve.consumed_E) if of is None else [f"{steps:.8g}" for steps in of]
        for of in (curve.own_E, curve.taken_E, curve.consumed_E)
    ]
    shared_E = None if consensus is None else consensus.returns_NE[0]
    for number, returns_N in enumerate(curve.returns_NE.T):
        shared = "" if shared_E is None else _short(shared_E[number])
        yield *(column[number] for column in columns), *map(_short, returns_N), shared


def _short(value: float) -> str:
    return f"{value:.6g}"


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
    for arm, seeds in run.after_rounds.items():
        run.arms.setdefault(arm, seeds)
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
    def column(name: str) -> Floats | None:
        found = [row.get(name) for row in rows]
        return np.array([float(text) for text in found if text]) if all(found) else None

    return Curve(
        np.array([float(row["budget_env_steps"]) for row in rows]),
        np.array([[float(row[policy]) for row in rows] for policy in policies]),
        column("own_env_steps"),
        column("taken_env_steps"),
    )


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))

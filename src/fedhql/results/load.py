"""Runs from their directories, or from what was archived of them."""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedhql.results.archive import CURVES, read_archive
from fedhql.results.curves import Floats, Run, agent_names, run_of_rows
from fedhql.storage.records import EvaluationRow, read_rows
from fedhql.storage.run_directory import RunDirectory


def load_run(path: Path | str) -> Run:
    path = Path(path)
    directory = RunDirectory(path)
    directory.require_run()
    settings = tomllib.loads(directory.settings.read_text())
    manifest = directory.read_manifest()
    if (path / CURVES).exists():
        return read_archive(path, settings, manifest)
    rows = read_rows(directory.evaluations, EvaluationRow) if directory.evaluations.exists() else []
    best_returns = {
        cell: _of_agents(json.loads(found.read_text()), agent_names(settings))
        for cell in directory.cells()
        if (found := directory.best_returns(cell)).exists()
    }
    manifest |= {"refused_answers": refused_answers(directory)}
    return run_of_rows(path.resolve().name, settings, manifest, rows, best_returns)


def refused_answers(directory: RunDirectory) -> dict[str, dict[str, int]]:
    """Return arm -> agent -> how many of its answers the server refused, over all seeds."""
    refused: dict[str, Counter[str]] = {}
    for cell in directory.cells():
        if (found := directory.refused_answers(cell)).exists():
            refused.setdefault(cell.arm, Counter()).update(json.loads(found.read_text()))
    return {arm: dict(of) for arm, of in refused.items()}


def _of_agents(returns: Mapping[str, float], names: Sequence[str]) -> Floats:
    """(N,), NaN for an agent whose best state was not kept."""
    return np.array([returns.get(name, np.nan) for name in names])


def load_runs(*paths: Path) -> list[Run]:
    """Runs, and all runs of suites; one that is named twice comes once, where it is first.

    Runs whose directories are called the same are told apart by those they are in.
    """
    homes = dict.fromkeys(home.resolve() for path in paths for home in _homes(path))
    names = [home.name for home in homes]
    return [
        replace(run, name=f"{home.parent.name}/{run.name}") if names.count(run.name) > 1 else run
        for home, run in zip(homes, map(load_run, homes), strict=True)
    ]


def _homes(path: Path) -> list[Path]:
    directory = RunDirectory(path)
    inside = sorted(path.iterdir(), key=_by_number) if path.is_dir() else []
    homes = [each for each in inside if RunDirectory(each).is_run()]
    if homes and not directory.is_run():
        return homes
    directory.require_run()
    return [path]


def _by_number(path: Path) -> list[tuple[str, int]]:
    """n5 comes before n10."""
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", path.name)]

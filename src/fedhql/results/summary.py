"""What a run came to, finished or not: per arm and agent, over seeds."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from fedhql.results.files import write_atomically
from fedhql.results.records import EvaluationRow, read_rows
from fedhql.results.run_directory import RunDirectory

RECENT = 0.1  # the last tenth of the evaluations


@dataclass(frozen=True)
class AgentSummary:
    """One agent in one arm, means over seeds."""

    best_mean_return: float  # the paper's metric, a running maximum and so biased upward
    recent_mean_return: float  # mean of the last tenth of the evaluations


Summary = dict[str, dict[str, AgentSummary]]  # arm -> agent -> figures
Curve = list[EvaluationRow]  # one agent with one arm and seed, in time order


def curves(rows: Sequence[EvaluationRow]) -> dict[tuple[str, str], list[Curve]]:
    """(arm, agent) -> a curve per seed."""
    by_seed: dict[tuple[str, str], dict[int, Curve]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_seed[row.arm, row.agent][row.seed].append(row)
    return {key: list(found.values()) for key, found in by_seed.items()}


def summarise(rows: Sequence[EvaluationRow]) -> Summary:
    summary: Summary = defaultdict(dict)
    for (arm, agent), found in curves(rows).items():
        summary[arm][agent] = AgentSummary(
            best_mean_return=fmean(curve[-1].best_mean_return for curve in found),
            recent_mean_return=fmean(_recent(curve) for curve in found),
        )
    return dict(summary)


def mean_over_agents(agents: dict[str, AgentSummary]) -> AgentSummary:
    return AgentSummary(
        fmean(agent.best_mean_return for agent in agents.values()),
        fmean(agent.recent_mean_return for agent in agents.values()),
    )


def write_summary(directory: RunDirectory) -> None:
    """summary.json: the table of the run, who was left out how often, and each cell's result."""
    summary = summarise(read_rows(directory.evaluations, EvaluationRow))
    refused: dict[str, Counter[str]] = defaultdict(Counter)
    results: dict[str, Any] = {}
    for cell in directory.cells():
        refused[cell.arm].update(_read(directory.refused_answers(cell)))
        if directory.result(cell).exists():
            results[str(cell)] = _read(directory.result(cell))
    manifest = directory.read_manifest()
    content = {
        "finished": len(results) == len(manifest["arms"]) * len(manifest["seeds"]),
        "arms": {
            arm: {
                "mean_over_agents": asdict(mean_over_agents(agents)),
                "refused_answers": refused[arm].total(),
                "agents": {
                    name: {**asdict(agent), "refused_answers": refused[arm][name]}
                    for name, agent in agents.items()
                },
            }
            for arm, agents in summary.items()
        },
        "cells": results,
    }
    write_atomically(directory.summary, json.dumps(content, indent=2) + "\n")


def _recent(curve: Curve) -> float:
    return fmean(row.mean_return for row in curve[-max(1, round(RECENT * len(curve))) :])


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    content: dict[str, Any] = json.loads(path.read_text())
    return content

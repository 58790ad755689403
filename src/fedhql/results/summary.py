"""What a run came to: per arm and agent, over seeds."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
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
    refused_answers: int  # NaN or infinity, left out of federation; a sum over seeds


Curve = list[EvaluationRow]  # one agent with one arm and seed, in time order


def curves(rows: Sequence[EvaluationRow]) -> dict[tuple[str, str], list[Curve]]:
    """(arm, agent) -> a curve per seed."""
    by_seed: dict[tuple[str, str], dict[int, Curve]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_seed[row.arm, row.agent][row.seed].append(row)
    return {key: list(found.values()) for key, found in by_seed.items()}


def summarise(directory: RunDirectory) -> dict[str, dict[str, AgentSummary]]:
    """arm -> agent -> figures, from the files of a run, finished or not."""
    refused: dict[str, Counter[str]] = defaultdict(Counter)
    for cell in directory.cells():
        if directory.result(cell).exists():
            refused[cell.arm].update(_result(directory, cell)["refused_answers"])
    summary: dict[str, dict[str, AgentSummary]] = defaultdict(dict)
    for (arm, agent), found in curves(read_rows(directory.evaluations, EvaluationRow)).items():
        summary[arm][agent] = AgentSummary(
            best_mean_return=fmean(curve[-1].best_mean_return for curve in found),
            recent_mean_return=fmean(_recent(curve) for curve in found),
            refused_answers=refused[arm][agent],
        )
    return dict(summary)


def write_summary(directory: RunDirectory) -> dict[str, dict[str, AgentSummary]]:
    summary = summarise(directory)
    manifest = directory.read_manifest()
    results = {
        str(cell): _result(directory, cell)
        for cell in directory.cells()
        if directory.result(cell).exists()
    }
    content = {
        "finished": len(results) == len(manifest["arms"]) * len(manifest["seeds"]),
        "arms": {
            arm: {
                "mean_over_agents": {
                    key: fmean(getattr(agent, key) for agent in agents.values())
                    for key in ("best_mean_return", "recent_mean_return")
                },
                "refused_answers": sum(agent.refused_answers for agent in agents.values()),
                "agents": {name: asdict(agent) for name, agent in agents.items()},
            }
            for arm, agents in summary.items()
        },
        "cells": results,
    }
    write_atomically(directory.summary, json.dumps(content, indent=2) + "\n")
    return summary


def _recent(curve: Curve) -> float:
    return fmean(row.mean_return for row in curve[-max(1, round(RECENT * len(curve))) :])


def _result(directory: RunDirectory, cell: Any) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(directory.result(cell).read_text())
    return content

"""The summary of a run, finished or not: means over seeds for each arm and agent."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from fedhql.results.curves import Run
from fedhql.results.load import load_run
from fedhql.results.tables import Table
from fedhql.results.unfinished import unfinished_cells
from fedhql.storage.arm_names import INDEPENDENT, label
from fedhql.storage.files import write_atomically
from fedhql.storage.run_directory import RunDirectory


@dataclass(frozen=True)
class AgentSummary:
    """The returns of one agent in one arm, as means over seeds."""

    best_mean_return: float  # the paper's metric: a running maximum, so it is biased upward
    recent_mean_return: float  # mean of the last tenth of the evaluations


Summary = dict[str, dict[str, AgentSummary]]  # arm -> agent -> figures


def summarise(run: Run) -> Summary:
    return {
        arm: {
            agent: AgentSummary(
                fmean(curve.max_mean()[n] for curve in seeds.values()),
                fmean(curve.recent_mean()[n] for curve in seeds.values()),
            )
            for n, agent in enumerate(run.agents)
        }
        for arm, seeds in run.arms.items()
    }


def mean_over_agents(agents: dict[str, AgentSummary]) -> AgentSummary:
    return AgentSummary(
        fmean(agent.best_mean_return for agent in agents.values()),
        fmean(agent.recent_mean_return for agent in agents.values()),
    )


def returns_table(run: Run, arms: Sequence[str] | None = None) -> Table:
    """Return a table of agents by arms, by default all, with the best and the recent return."""
    summary, seeds = summarise(run), len({s for curves in run.arms.values() for s in curves})
    summary = {arm: summary[arm] for arm in (summary if arms is None else arms)}
    title = f"Mean return over {seeds} seed{'s' * (seeds > 1)}: best evaluation, and last tenth"
    parts = ("best", "last tenth")
    header = ["agent", *(f"{label(arm)}: {what}" for arm in summary for what in parts)]
    rows = [(name, *_figures([of[name] for of in summary.values()])) for name in run.agents]
    mean = _figures([mean_over_agents(of) for of in summary.values()])
    body = [*rows, ("mean", *mean)] if summary else []
    alone = "alone: the arm independent, in which every agent learns alone."
    return Table(title, header, body, note=alone if INDEPENDENT in summary else "")


def _figures(arms: Sequence[AgentSummary]) -> list[str]:
    pairs = ((arm.best_mean_return, arm.recent_mean_return) for arm in arms)
    return [f"{value:.4g}" for pair in pairs for value in pair]


def write_summary(directory: RunDirectory) -> None:
    """Write summary.json: returns, numbers of refused answers, and the result of each cell."""
    run = load_run(directory.path)
    summary, refused = summarise(run), run.manifest["refused_answers"]
    results: dict[str, Any] = {}
    for cell in directory.cells():
        if directory.result(cell).exists():
            best = {"best_returns": _read(directory.best_returns(cell))}
            results[str(cell)] = _read(directory.result(cell)) | best
    content = {
        "finished": not unfinished_cells(run),
        "arms": {
            arm: {
                "mean_over_agents": asdict(mean_over_agents(agents)),
                "refused_answers": sum(refused.get(arm, {}).values()),
                "agents": {
                    name: {**asdict(agent), "refused_answers": refused.get(arm, {}).get(name, 0)}
                    for name, agent in agents.items()
                },
            }
            for arm, agents in summary.items()
        },
        "cells": results,
    }
    write_atomically(directory.summary, json.dumps(content, indent=2) + "\n")


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    return json.loads(path.read_text())

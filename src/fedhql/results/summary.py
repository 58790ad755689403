"""The summary of a run, finished or not: means over seeds for each arm and agent."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from fedhql.results.curves import Run
from fedhql.results.load import load_run
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


def write_summary(directory: RunDirectory) -> None:
    """Write summary.json: returns, numbers of refused answers, and the result of each cell."""
    run = load_run(directory.path)
    summary, refused = summarise(run), run.manifest["refused_answers"]
    results: dict[str, Any] = {}
    for cell in directory.cells():
        if directory.result(cell).exists():
            best = {"best_returns": _read(directory.best_returns(cell))}
            results[str(cell)] = _read(directory.result(cell)) | best
    manifest = directory.read_manifest()
    content = {
        "finished": len(results) == len(manifest["arms"]) * len(manifest["seeds"]),
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

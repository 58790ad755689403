"""Agents whose values are no longer numbers: who, how often, and the mean without them."""

from statistics import fmean

import numpy as np

from fedhql.results.curves import Run
from fedhql.results.summary import AgentSummary, summarise


def diverged_notes(run: Run) -> list[str]:
    """Return one sentence for each arm with agents that diverged.

    An agent counts if the server refused an answer of it, or if it expected no finite return in
    the last tenth of its evaluations with some seed. Attackers do not count.
    """
    summary, notes = summarise(run), []
    refused: dict[str, dict[str, int]] = run.manifest.get("refused_answers", {})
    secure = run.settings["federation"].get("secure_aggregation", False)
    wrong = "no finite numbers" + " or beyond secure_value_bound" * secure
    for arm in run.ordered_arms:
        counts = {name: count for name, count in refused.get(arm, {}).items() if count}
        attack = run.attack(arm)
        honest = run.agents[: len(run.agents) - (attack[1] if attack else 0)]
        lost = [name for name in honest if name in counts or name in _not_finite(run, arm)]
        if lost:
            told = [f"{name} ({_told(counts.get(name, 0))})" for name in lost]
            notes.append(
                f"{run.label(arm)}: {', '.join(told)} answered with values that are {wrong}. "
                f"{_means(summary[arm], lost)}"
            )
    return notes


def _told(refused: int) -> str:
    return f"{refused:,} answers refused" if refused else "in evaluations"


def _not_finite(run: Run, arm: str) -> set[str]:
    found = [of.start_values_N for cell, of in run.measures.items() if cell.arm == arm]
    return {
        name
        for start_values_N in found
        for name, value in zip(run.agents, start_values_N, strict=True)
        if not np.isfinite(value)
    }


def _means(agents: dict[str, AgentSummary], lost: list[str]) -> str:
    whole = fmean(agent.best_mean_return for agent in agents.values())
    others = [agent.best_mean_return for name, agent in agents.items() if name not in lost]
    if not others:
        return "No agent is left."
    return (
        f"The mean over agents of the max mean return is {whole:.4g} with them and "
        f"{fmean(others):.4g} without."
    )

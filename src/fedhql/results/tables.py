"""The tables of a report, once, for HTML and for Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from fedhql.results.claims import Verdict
from fedhql.results.curves import Run
from fedhql.results.objectives import (
    FRACTIONS,
    Estimate,
    digits_of,
    sample_efficiency,
    system_welfare,
)
from fedhql.results.statistics import interquartile_mean, probability_of_improvement
from fedhql.storage.arm_names import INDEPENDENT
from fedhql.storage.run_directory import Cell


@dataclass(frozen=True)
class Table:
    """Text cells; all columns but the first `words` hold numbers."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1
    note: str = ""

    def markdown(self) -> str:
        rules = ["---" if n < self.words else "---:" for n in range(len(self.header))]
        lines = [
            f"**{self.title}**\n",
            *(_markdown_row(row) for row in (self.header, rules, *self.rows)),
        ]
        return "\n".join(lines) + ("\n\n" + self.note if self.note else "") + "\n"

    def html(self) -> str:
        def cell(tag: str, n: int, text: str) -> str:
            kind = "number" if n >= self.words else text.replace(" ", "-")
            known = kind if kind in ("number", "met", "not-met", "not-run") else ""
            return f'<{tag} class="{known}">{escape(text)}</{tag}>'

        head = "".join(cell("th", n, text) for n, text in enumerate(self.header))
        body = "\n".join(
            "<tr>" + "".join(cell("td", n, text) for n, text in enumerate(row)) + "</tr>"
            for row in self.rows
        )
        note = f"<p>{escape(self.note)}</p>" if self.note else ""
        return (
            f"<table><caption>{escape(self.title)}</caption><thead><tr>{head}</tr></thead>"
            f"<tbody>{body}</tbody></table>{note}"
        )


def claims_table(verdicts: Sequence[Verdict]) -> Table:
    rows = [(v.status, v.experiment, v.claim, v.paper, v.ours or "-") for v in verdicts]
    header = ("", "experiment", "the paper's claim", "its figure", "ours")
    return Table("The paper's claims", header, rows, words=5)


def scores_table(run: Run, level: float) -> Table:
    """Each arm at the end of what it has consumed: the paper's metric, and what it hides."""
    rows = []
    for arm in run.ordered_arms:
        curves = run.arms[arm]
        per_seed = {
            "max mean": [float(c.max_mean().mean()) for c in curves.values()],
            "recent": [float(c.recent_mean().mean()) for c in curves.values()],
            "area": [float(c.area().mean()) for c in curves.values()],
        }
        again = [
            float(np.nanmean(run.best_returns[Cell(arm, seed)]))
            for seed in curves
            if Cell(arm, seed) in run.best_returns
        ]
        alone = [float(c.max_mean().mean()) for c in run.arms.get(INDEPENDENT, {}).values()]
        better = (
            f"{probability_of_improvement(per_seed['max mean'], alone):.2f}"
            if alone and arm != INDEPENDENT
            else "-"
        )
        middle = interquartile_mean(per_seed["max mean"])
        rows.append(
            (
                run.label(arm),
                str(len(curves)),
                str(Estimate.of(per_seed["max mean"], level)),
                f"{middle:{digits_of(abs(middle))}}",
                better,
                str(Estimate.of(again, level)) if again else "-",
                str(Estimate.of(per_seed["recent"], level)),
                str(Estimate.of(per_seed["area"], level)),
            )
        )
    header = (
        "arm",
        "seeds",
        "max mean return",
        "its IQM",
        "P(better than alone)",
        "best state re-evaluated",
        "mean of the last 10 %",
        "area under the curve",
    )
    note = (
        f"Mean over agents within a seed, then over seeds, with {level:.0%} t-intervals. "
        "The max mean return is a running maximum of noisy means and so biased upward; the best "
        "state of each agent, played in fresh episodes, says how much."
    )
    return Table("At the end", header, rows, note=note)


def welfare_table(run: Run, level: float) -> Table:
    """Objective 1, arms down and consumption across."""
    found = {(w.arm, w.fraction): w for w in system_welfare(run, level=level)}
    rows = []
    for arm in run.ordered_arms:
        cells = []
        for fraction in FRACTIONS:
            entry = found.get((arm, fraction))
            gain = f" (+{entry.gain})".replace("+-", "-") if entry and entry.gain else ""
            cells.append(f"{entry.welfare}{gain}" if entry else "-")
        rows.append((run.label(arm), *cells))
    header = ("arm", *(f"{fraction:.0%}" for fraction in FRACTIONS))
    note = (
        "Max mean return at equal consumption, the server's share included; in brackets the gain "
        "over independent, seed by seed, with an interval of its own. "
        f"{level:.0%} t-intervals over seeds."
    )
    return Table("Objective 1, system welfare", header, rows, note=note)


def efficiency_table(run: Run) -> Table:
    """Objective 2, agents down and arms across."""
    arms = {arm: sample_efficiency(run, arm) for arm in run.federated_arms}
    rows = [
        (
            agent,
            *(
                f"{found[n].median_ratio:.2f} ({found[n].probability:.2f})" if found else "-"
                for found in arms.values()
            ),
        )
        for n, agent in enumerate(run.agents)
    ]
    header = ("agent", *(run.label(arm) for arm in arms))
    note = (
        "Interactions needed to reach what the agent reaches alone, over those it needed alone: "
        "median over seeds (inf: never within the budget), in brackets the share of seeds below 1."
    )
    return Table("Objective 2, sample efficiency", header, rows, note=note)


def agents_table(run: Run) -> Table:
    rows = []
    for n, agent in enumerate(run.agents):
        cells = []
        for arm in run.ordered_arms:
            curves = run.arms[arm].values()
            best = np.mean([curve.max_mean()[n] for curve in curves])
            recent = np.mean([curve.recent_mean()[n] for curve in curves])
            cells.append(f"{best:.0f} / {recent:.0f}")
        rows.append((agent, *cells))
    header = ("agent", *(run.label(arm) for arm in run.ordered_arms))
    note = "Max mean return / mean of the last 10 % of evaluations, means over seeds."
    return Table("Each agent", header, rows, note=note)


def run_tables(run: Run, level: float) -> list[Table]:
    tables = [scores_table(run, level), welfare_table(run, level), agents_table(run)]
    if run.federated_arms and INDEPENDENT in run.arms:
        tables.append(efficiency_table(run))
    return tables


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"

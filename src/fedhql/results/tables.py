"""The tables of a report, once, for HTML and for Markdown."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from fedhql.results.curves import Run
from fedhql.results.objectives import (
    FRACTIONS,
    THRESHOLDS,
    Estimate,
    sample_efficiency,
    share_that_needs_less,
    system_welfare,
)
from fedhql.results.statistics import LEVEL
from fedhql.results.verdicts import MET, NOT_MET, NOT_RUN, UNDECIDED, Verdict, distance
from fedhql.storage.arm_names import INDEPENDENT

LEGEND = (
    "In all tables, alone is the arm independent: every agent learns alone. A dash stands for what "
    "was not run or not recorded. [1 seed] or [2 equal seeds] stands where there is no interval, "
    "because one seed, or a few with the same value, do not show how much seeds differ."
)
STATUSES = (MET, NOT_MET, NOT_RUN, UNDECIDED)


@dataclass(frozen=True)
class Table:
    """Text cells; all columns but the first `words` hold numbers."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1
    note: str = ""
    brief: Sequence[int] = ()  # the columns for a terminal; all if empty

    def markdown(self) -> str:
        rules = ["---" if n < self.words else "---:" for n in range(len(self.header))]
        lines = [
            f"**{self.title}**\n",
            *(_markdown_row(row) for row in (self.header, rules, *self.rows)),
        ]
        return "\n".join(lines) + ("\n\n" + self.note if self.note else "") + "\n"

    def text(self) -> str:
        """Return the table for a terminal or a notebook, with columns below each other."""
        lines = [self.header, *self.rows]
        widths = [max(len(line[n]) for line in lines) for n in range(len(self.header))]
        return "\n".join(
            [
                self.title,
                *(
                    "  ".join(
                        text.ljust(width) if n < self.words else text.rjust(width)
                        for n, (text, width) in enumerate(zip(line, widths, strict=True))
                    ).rstrip()
                    for line in lines
                ),
                *([self.note] if self.note else []),
            ]
        )

    def html(self) -> str:
        def cell(tag: str, n: int, text: str) -> str:
            status, _, _ = text.partition(" (")
            kinds = ["number"] if n >= self.words else []
            kinds += [status.replace(" ", "-")] if status in STATUSES else []
            # Where columns are many, an interval goes below its number, and stays in one line.
            shown = re.sub(r" (?=[\[(/])", " <wbr>", escape(text))
            return f'<{tag} class="{" ".join(kinds)}">{shown}</{tag}>'

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


def claims_table(verdicts: Sequence[Verdict], reading: str = "") -> Table:
    rows = [
        (
            verdict.status,
            verdict.experiment,
            f"{verdict.statement} [{verdict.section}]",
            str(verdict.range),
            verdict.ours or "-",
            str(verdict.seeds or "-"),
            _p(verdict.p_holm),
            _p(verdict.evidence.p_sign_flips if verdict.evidence else None),
            f"{verdict.evidence.shortfall:.2f}" if verdict.evidence else "-",
        )
        for verdict in verdicts
    ]
    header = (
        "",
        "experiment",
        "the paper's statement [section]",
        "met if",
        "ours",
        "seeds",
        "p (t, Holm)",
        "p (flips)",
        "shortfall",
    )
    far = distance(verdicts)
    note = (
        f"Means over seeds with {LEVEL:.0%} t-intervals. Met, or not met: the corrected p of "
        f"Student's test is at most {1 - LEVEL:.2g}, and so is the probability of even one wrong "
        "verdict in this table, as far as means over agents go: intervals of a single agent over 5 "
        "seeds cover less. Else undecided. Flips: the permutation test of the same statement, "
        "uncorrected; with 5 seeds it cannot be below 0.06. Shortfall: how far the mean is outside "
        "the range, in units of the task's scale (CartPole 500, LunarLander 300, shares of agents "
        f"1). Its mean, the distance to the paper: {'-' if far is None else f'{far:.3f}'}."
    )
    title = "The paper's statements" + (f", read as {reading}" if reading else "")
    return Table(title, header, rows, words=5, note=note, brief=(0, 2, 4))


def _p(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2g}" if value >= 0.0001 else "< 0.0001"


def welfare_table(run: Run, level: float) -> Table:
    """Objective 1, arms down and consumption across."""
    found = {(w.arm, w.fraction): w for w in system_welfare(run, level=level)}
    rows = []
    for arm in run.ordered_arms:
        cells = []
        for fraction in FRACTIONS:
            entry = found.get((arm, fraction))
            cells.append(f"{entry.welfare}{over_alone(entry.gain)}" if entry else "-")
        rows.append((run.label(arm), *cells))
    header = ("arm", *(f"{fraction:.0%}" for fraction in FRACTIONS))
    note = (
        "Columns: how much of its budget each agent has consumed, the server's share included. "
        f"Entries: the max mean return, mean over agents, with {level:.0%} t-intervals over seeds. "
        "In round brackets: the gain over alone, seed by seed, with an interval of its own. "
        "(= alone): no seed differs, as before the first round. A federated arm may be evaluated "
        "up to one phase and one round later than alone."
    )
    return Table("Objective 1, system welfare", header, rows, note=note)


def over_alone(gain: Estimate | None) -> str:
    if gain is None:
        return ""
    return " (= alone)" if gain.is_zero else f" (+{gain})".replace("+-", "-")


def efficiency_table(run: Run, level: float) -> Table:
    """Objective 2, agents down; of each arm the ratio of own steps, and how probable a gain is."""
    arms = {arm: sample_efficiency(run, arm, server_share=False) for arm in _unattacked(run)}
    rows = [
        (
            agent,
            *(
                text
                for of in arms.values()
                for text in (
                    (f"{of[n].median_ratio:.2f}", _share(of[n].probability_of_less(level)))
                    if of
                    else ("-", "-")
                )
            ),
        )
        for n, agent in enumerate(run.agents)
    ]
    labels = [run.label(arm) for arm in arms]
    columns = ("ratio", "P(fewer)")
    header = ("agent", *(f"{label}: {column}" for label in labels for column in columns))
    note = (
        "Own env steps that an agent needs in the federation to reach its maximum alone, divided "
        "by those it needed alone: median over seeds (inf: never within the budget). P(fewer): the "
        f"probability that it needs fewer, with the exact {level:.0%} interval over seeds "
        "(Clopper-Pearson). -: not recorded."
    )
    title = "Objective 2, each agent: steps federated / alone (below 1 is a gain)"
    return Table(title, header, rows, note=note)


def reaching_table(run: Run, level: float) -> Table:
    """Objective 2 over all agents: returns to reach and what counts down, arms across."""
    rows = []
    for reach in (None, *THRESHOLDS.get(run.settings["environment"]["id"], ())):
        for server_share in (False, True):
            cells = []
            for arm in _unattacked(run):
                of = sample_efficiency(run, arm, server_share=server_share, reach=reach)
                estimate = Estimate.of(share_that_needs_less(of), level) if of else None
                cells.append(_share(estimate) if estimate else "-")
            what = "its own maximum alone" if reach is None else f"{reach:g}"
            counted = "own and the server's share" if server_share else "own"
            rows.append((what, counted, *cells))
    header = ("to reach", "env steps", *(run.label(arm) for arm in _unattacked(run)))
    note = (
        "The share of agents that need fewer env steps in the federation than alone. An agent that "
        f"gets there neither way is not one of them. {level:.0%} t-intervals over seeds, within "
        "0 and 1. The paper counts own env steps. -: not recorded."
    )
    title = "Objective 2, share of agents that need fewer steps (above 0.5 is a gain)"
    return Table(title, header, rows, words=2, note=note)


def _unattacked(run: Run) -> list[str]:
    return [arm for arm in run.federated_arms if not run.attack(arm)]


def _share(estimate: Estimate) -> str:
    return estimate.as_share().written(".2f")


def agents_table(run: Run) -> Table:
    """Arms down, agents across."""
    rows = []
    for arm in run.ordered_arms:
        curves = run.arms[arm].values()
        best_N = np.mean([curve.max_mean() for curve in curves], axis=0)
        recent_N = np.mean([curve.recent_mean() for curve in curves], axis=0)
        cells = (
            f"{best:.0f} / {recent:.0f}" for best, recent in zip(best_N, recent_N, strict=True)
        )
        rows.append((run.label(arm), *cells))
    note = "Max mean return / mean of the last 10 % of evaluations, means over seeds."
    return Table("Each agent", ("arm", *run.agents), rows, note=note)


def run_tables(run: Run, level: float) -> list[Table]:
    """Return what a run reached below its scores: both objectives, and each agent."""
    tables = [welfare_table(run, level), agents_table(run)]
    if run.federated_arms and INDEPENDENT in run.arms:
        tables += [reaching_table(run, level), efficiency_table(run, level)]
    return tables


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"

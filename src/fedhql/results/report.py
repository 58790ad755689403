"""One page to judge runs by: self-contained HTML with interactive curves, and Markdown."""

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from types import MappingProxyType

import numpy as np
import tomli_w

from fedhql.results.answer import answer, gains
from fedhql.results.attacks import attack_csv, attack_scores, attack_tables
from fedhql.results.claims import check_claims, judge
from fedhql.results.curves import Run
from fedhql.results.measures_table import measures_table, policies_table
from fedhql.results.notes import notes
from fedhql.results.panels import Panel, gains_panel, run_panels
from fedhql.results.paper_experiments import share_of_papers_budget
from fedhql.results.reading_answers import Answers, answers_of_readings, readings_csv
from fedhql.results.readings import by_reading, nearest_first, readings_tables
from fedhql.results.scores_table import scores_table
from fedhql.results.styles import styles
from fedhql.results.tables import LEGEND, Table, claims_table, run_tables
from fedhql.storage.files import write_atomically

ANSWERS_FIRST = 4  # runs; of more, the answers stand with each run


def write_report(
    runs: Sequence[Run],
    out: Path,
    rng: np.random.Generator,
    *,
    level: float,
    at: float = 1.0,
    kept: Answers = MappingProxyType({}),
) -> list[Path]:
    """Write `out`.html and `out`.md, and return them and what else was written.

    `out` may also have one of these suffixes.

    Of attacks, compared at this share of the budget, also write `out`-attacks.csv. Of readings
    among the runs and in `kept`, also write `out`-readings.csv.
    """
    out = out.with_suffix("") if out.suffix in (".html", ".md") else out
    scores = attack_scores(runs, at=at, level=level)
    first = [*attack_tables(scores, level), *paper_tables(runs, rng, kept)]
    tables = [_tables(run, level) for run in runs]
    few = len(runs) <= ANSWERS_FIRST
    names = ", ".join(run.name for run in runs) or "readings of the paper"
    title = "FedHQL: " + (names if few else f"{len(runs)} runs")
    out.parent.mkdir(parents=True, exist_ok=True)
    written = {
        ".html": _html(title, runs, first, tables, level),
        ".md": _markdown(title, runs, first, tables, level),
    }
    if scores:
        written["-attacks.csv"] = attack_csv(scores)
    if readings := answers_of_readings(runs, kept):
        written["-readings.csv"] = readings_csv(readings)
    for suffix, text in written.items():
        write_atomically(out.with_name(f"{out.name}{suffix}"), text)
    return [out.with_name(f"{out.name}{suffix}") for suffix in written]


def _tables(run: Run, level: float) -> list[Table]:
    beside = (policies_table(run, level), measures_table(run, level))
    tables = [scores_table(run, level), *run_tables(run, level)]
    return tables + [table for table in beside if table]


def paper_tables(
    runs: Sequence[Run], rng: np.random.Generator, kept: Answers = MappingProxyType({})
) -> list[Table]:
    """Return the paper's statements beside its experiments, and readings beside each other.

    Of the readings, only the nearest has its numbers shown.
    """
    answers = answers_of_readings(runs, kept)
    readings = nearest_first({reading: judge(of, rng) for reading, of in answers.items()})
    compared = readings_tables(readings, rng) if readings else []
    verdicts = check_claims(by_reading(runs).get("", []), rng)
    whole = [claims_table(verdicts)] if any(verdict.evidence for verdict in verdicts) else []
    nearest = [claims_table(of, reading) for reading, of in list(readings.items())[:1]]
    return compared + whole + nearest


def _markdown(
    title: str,
    runs: Sequence[Run],
    first: Sequence[Table],
    tables: Sequence[list[Table]],
    level: float,
) -> str:
    few = len(runs) <= ANSWERS_FIRST
    parts = [f"# {title}\n", *(f"{line}\n" for line in _answers(runs, level) if few)]
    parts += [f"{LEGEND}\n", *(table.markdown() for table in first)]
    for run, of_run in zip(runs, tables, strict=True):
        parts += [f"## {run.name}: {run.title}\n", _facts(run) + "\n"]
        parts += [] if few else [answer(run, level) + "\n"]
        parts += [f"**{note.head}.** {note.text}\n" for note in notes(run)]
        parts += [table.markdown() for table in of_run]
    return "\n".join(parts)


def _html(
    title: str,
    runs: Sequence[Run],
    first: Sequence[Table],
    tables: Sequence[list[Table]],
    level: float,
) -> str:
    few = len(runs) <= ANSWERS_FIRST
    panels = [gains_panel(runs, level)] if few and any(gains(run) for run in runs) else []
    body = [
        f"<h1>{escape(title)}</h1>",
        *(f'<p class="answer">{escape(line)}</p>' for line in _answers(runs, level) if few),
        _places(panels, "panels answers"),
        f"<p>{escape(LEGEND)}</p>",
        *(table.html() for table in first),
        _toggles(runs),
    ]
    chosen = styles(runs)
    for number, (run, of_run) in enumerate(zip(runs, tables, strict=True)):
        wide, small = run_panels(run, f"run{number}", chosen, level)
        panels += wide + small
        body += [
            f"<h2>{escape(run.name)}: {escape(run.title)}</h2>",
            f"<p>{escape(_facts(run))}</p>",
            "" if few else f'<p class="answer">{escape(answer(run, level))}</p>',
            *(f"<p><b>{note.head}.</b> {escape(note.text)}</p>" for note in notes(run)),
            _places(wide, "panels wide"),
            *(table.html() for table in of_run),
            "<h3>Each agent, max mean return</h3>",
            _places(small, "panels"),
            "<details><summary>Settings</summary>",
            f"<pre>{escape(tomli_w.dumps(run.settings))}</pre></details>",
        ]
    from plotly.offline import get_plotlyjs  # here, because it takes a moment to load

    template = files("fedhql.results").joinpath("templates/report.html").read_text("utf-8")
    # A "</script>" inside data would end the page's own.
    data = json.dumps(panels, separators=(",", ":")).replace("</", "<\\/")
    return Template(template).substitute(
        title=escape(title), plotly=get_plotlyjs(), body="\n".join(body), data=data
    )


def _answers(runs: Sequence[Run], level: float) -> list[str]:
    """Return what each run answers; with its name where there are several."""
    names = [f"{run.name}: " if len(runs) > 1 else "" for run in runs]
    return [f"{name}{answer(run, level)}" for name, run in zip(names, runs, strict=True)]


def _facts(run: Run) -> str:
    manifest = run.manifest
    versions = ", ".join(f"{name} {v}" for name, v in manifest.get("versions", {}).items())
    seconds = manifest.get("wall_seconds")  # 0 until the run ends
    hours = f"{seconds / 3600:.2f} h on " if seconds else ""
    machine = f", {manifest['platform']}" if "platform" in manifest else ""  # not in an archive
    share = share_of_papers_budget(run)
    part = f", {100 * share:.3g}% of the paper's" if share and share != 1 else ""
    return (
        f"Budget {run.budget:,} env steps per agent{part}; "
        f"seeds {', '.join(map(str, manifest['seeds']))}; engine "
        f"{manifest.get('engine', 'messages')}; {hours}{manifest.get('cores')} cores"
        f"{machine}; Python {manifest.get('python')}, {versions}."
    )


def _toggles(runs: Sequence[Run]) -> str:
    """A box for each arm, for all plots at once; the same colour everywhere."""
    boxes, chosen = {}, styles(runs)
    for run in runs:
        for arm in run.ordered_arms:
            name = run.label(arm)
            colour, _ = chosen[name]
            boxes[name] = (
                f'<label><input type="checkbox" value="{escape(name)}" checked>'
                f'<span class="swatch" style="background:{colour}"></span>{escape(name)}</label>'
            )
    return f'<div class="toggles">{"".join(boxes.values())}</div>'


def _places(panels: Sequence[Panel], kind: str) -> str:
    inside = "".join(
        f'<div class="panel" id="{panel["id"]}" style="height: {panel["height"]}px"></div>'
        for panel in panels
    )
    return f'<div class="{kind}">{inside}</div>'

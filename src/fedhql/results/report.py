"""One page to judge runs by: self-contained HTML with interactive curves, and Markdown."""

import json
from collections.abc import Sequence
from functools import partial
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import tomli_w

from fedhql.results.attacks import attack_csv, attack_scores, attack_tables
from fedhql.results.claims import check_claims
from fedhql.results.curves import Run
from fedhql.results.readings import by_reading, readings_table
from fedhql.results.statistics import t_band
from fedhql.results.styles import BEST, EACH, MEASURES, Points, Style, mean_and_band, styles
from fedhql.results.tables import Table, claims_table, run_tables
from fedhql.storage.files import write_atomically

Panel = dict[str, Any]  # id, traces and layout of one plot


def write_report(
    runs: Sequence[Run], out: Path, rng: np.random.Generator, *, level: float, at: float = 1.0
) -> list[Path]:
    """`out`.html and `out`.md; of attacks, at this share of the budget, also `out`-attacks.csv."""
    scores = attack_scores(runs, at=at, level=level)
    first = [*attack_tables(scores, level), *paper_tables(runs, rng)]
    tables = [run_tables(run, level) for run in runs]
    title = "FedHQL: " + ", ".join(run.name for run in runs)
    out.parent.mkdir(parents=True, exist_ok=True)
    written = {
        ".html": _html(title, runs, first, tables, level),
        ".md": _markdown(title, runs, first, tables),
    }
    if scores:
        written["-attacks.csv"] = attack_csv(scores)
    for suffix, text in written.items():
        write_atomically(out.with_name(f"{out.name}{suffix}"), text)
    return [out.with_name(f"{out.name}{suffix}") for suffix in written]


def paper_tables(runs: Sequence[Run], rng: np.random.Generator) -> list[Table]:
    """Return the paper's statements beside its experiments, by reading if there are several."""
    checked = {reading: check_claims(of, rng) for reading, of in by_reading(runs).items()}
    verdicts = {
        reading: of for reading, of in checked.items() if any(verdict.evidence for verdict in of)
    }
    readings = {reading: of for reading, of in verdicts.items() if reading}
    compared = [readings_table(readings)] if readings else []
    return compared + [claims_table(of, reading) for reading, of in verdicts.items()]


def _markdown(
    title: str, runs: Sequence[Run], first: Sequence[Table], tables: Sequence[list[Table]]
) -> str:
    parts = [f"# {title}\n", *(table.markdown() for table in first)]
    for run, of_run in zip(runs, tables, strict=True):
        parts += [f"## {run.name}: {run.title}\n", _facts(run) + "\n"]
        parts += [table.markdown() for table in of_run]
    return "\n".join(parts)


def _html(
    title: str,
    runs: Sequence[Run],
    first: Sequence[Table],
    tables: Sequence[list[Table]],
    level: float,
) -> str:
    panels: list[Panel] = []
    body = [f"<h1>{escape(title)}</h1>", *(table.html() for table in first), _toggles(runs)]
    chosen = styles(runs)
    for number, (run, of_run) in enumerate(zip(runs, tables, strict=True)):
        wide, small = _panels(run, f"run{number}", chosen, level)
        panels += wide + small
        body += [
            f"<h2>{escape(run.name)}: {escape(run.title)}</h2>",
            f"<p>{escape(_facts(run))}</p>",
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


def _facts(run: Run) -> str:
    manifest = run.manifest
    versions = ", ".join(f"{name} {v}" for name, v in manifest.get("versions", {}).items())
    hours = manifest.get("wall_seconds", 0) / 3600
    machine = f", {manifest['platform']}" if "platform" in manifest else ""  # not in an archive
    return (
        f"Budget {run.budget:,} env steps per agent; "
        f"seeds {', '.join(map(str, manifest['seeds']))}; engine "
        f"{manifest.get('engine', 'messages')}; {hours:.2f} h on {manifest.get('cores')} cores"
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
    inside = "".join(f'<div class="panel" id="{panel["id"]}"></div>' for panel in panels)
    return f'<div class="{kind}">{inside}</div>'


def _panels(
    run: Run, prefix: str, chosen: dict[str, Style], level: float
) -> tuple[list[Panel], list[Panel]]:
    """Mean over agents on both measures; then each agent on the paper's."""
    wide = [
        _panel(
            f"{prefix}-{key}",
            name,
            run,
            {
                arm: [(c.consumed_E, MEASURES[name](c).mean(axis=0)) for c in seeds.values()]
                for arm, seeds in run.arms.items()
            },
            chosen,
            level,
        )
        for key, name in (("best", BEST), ("each", EACH))
    ]
    small = [
        _panel(
            f"{prefix}-{agent}",
            agent.replace("agent", "Agent"),
            run,
            {
                arm: [(c.consumed_E, c.best[n]) for c in seeds.values()]
                for arm, seeds in run.arms.items()
            },
            chosen,
            level,
        )
        for n, agent in enumerate(run.agents)
    ]
    return wide, small


def _panel(
    place: str,
    title: str,
    run: Run,
    seeds: dict[str, list[Points]],
    chosen: dict[str, Style],
    level: float,
) -> Panel:
    traces: list[dict[str, Any]] = []
    for arm in run.ordered_arms:
        name = run.label(arm)
        colour, _ = chosen[name]
        x, mean, low, high = mean_and_band(seeds[arm], partial(t_band, level=level))
        common = {"meta": name, "mode": "lines", "type": "scatter", "showlegend": False}
        if len(seeds[arm]) > 1:
            around = np.concatenate([low, high[::-1]])
            traces.append(
                common
                | {
                    "x": _short(np.concatenate([x, x[::-1]])),
                    "y": _short(around),
                    "fill": "toself",
                    "fillcolor": f"{colour}26",
                    "line": {"width": 0},
                    "hoverinfo": "skip",
                }
            )
        hover = f"{name}: %{{y:.1f}}<extra></extra>"
        traces.append(
            common
            | {"x": _short(x), "y": _short(mean), "name": name, "hovertemplate": hover}
            | {"line": {"color": colour, "width": 2}}
        )
    layout = {
        "title": {"text": title, "font": {"size": 14}, "x": 0.02},
        "margin": {"l": 50, "r": 15, "t": 40, "b": 40},
        "hovermode": "x unified",
        "xaxis": {"title": {"text": "env steps per agent"}, "range": [0, run.budget]},
        "yaxis": {"title": {"text": "return"}},
    }
    return {"id": place, "traces": traces, "layout": layout}


def _short(values: Any) -> list[float | None]:
    """Five digits are more than a screen shows. JSON has no NaN: a gap."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]

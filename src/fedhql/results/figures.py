"""The paper's figures, in its layout, and two more: for print, and for colour-blind readers."""

from collections.abc import Iterable, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from fedhql.results.attacks import AttackScore, attack_scores, row_names
from fedhql.results.curves import Run
from fedhql.results.objectives import Estimate, curves_until, welfare_of
from fedhql.results.statistics import LEVEL, PAPER_LEVEL, bootstrap_band, performance_profile
from fedhql.results.styles import (
    MEASURES,
    POINTS,
    SEEDS_OF_A_BAND,
    Band,
    Points,
    Style,
    around_means,
    mean_and_band,
    seed_count,
    styles,
)
from fedhql.storage.arm_names import INDEPENDENT

AGENTS_A_ROW = 5
LEGEND_COLUMN, LEGEND_LETTER = 2.4, 0.1  # inches: the least, and of a longer label's letters
X_LABEL = "budget consumed per agent (env steps, server's share included)"
BAND = f"{PAPER_LEVEL:.0%} bootstrap, as in the paper"
BAND_RESAMPLES = 1_000  # of a band, at each of its points


class NotebookFigure(Figure):
    """A figure that notebooks show; without pyplot, which keeps every figure in memory."""

    def _repr_png_(self) -> bytes:
        png = BytesIO()
        self.savefig(png, format="png", dpi=100)
        return png.getvalue()


def draw_figures(
    runs: Sequence[Run], home: Path, rng: np.random.Generator, *, attacks_at: float = 1.0
) -> list[Path]:
    """Write welfare, agents, profile, exploration (of λ) and attacks, as PNG and SVG."""
    runs = [run for run in runs if run.arms]
    if not runs:
        return []
    home.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(
        {"axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "fedhql"}
    ):
        figures = {
            "welfare": welfare_figure(runs, rng),
            "agents": agents_figure(runs, rng),
            "profile": profile_figure(runs),
        }
        if any(len(_explorations(run)) > 1 for run in runs):
            figures["exploration"] = exploration_figure(runs)
        if scores := attack_scores(runs, at=attacks_at, level=LEVEL):
            figures["attacks"] = attacks_figure(scores)
        return [path for name, figure in figures.items() for path in _save(figure, home / name)]


def welfare_figure(runs: Sequence[Run], rng: np.random.Generator) -> Figure:
    """Mean over agents: a column for each run (one run: a column for each measure)."""
    chosen = styles(runs)
    rows, columns = (2, len(runs)) if len(runs) > 1 else (1, 2)
    figure = NotebookFigure(figsize=(4.6 * columns + 0.8, 3.4 * rows + 0.8), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for r, run in enumerate(runs):
        column = panels[:, r] if len(runs) > 1 else panels[0]
        for axes, (name, measure) in zip(column, MEASURES.items(), strict=True):
            for arm in run.ordered_arms:
                averaged = [
                    (curve.consumed_E, measure(curve).mean(axis=0))
                    for curve in run.arms[arm].values()
                ]
                _draw(axes, run.label(arm), chosen[run.label(arm)], averaged, rng)
            axes.set_title(f"{_title(run)}\n{name}", fontsize=10)
            axes.set_ylabel("mean over agents")
    figure.supxlabel(f"{X_LABEL}\n{around_means(runs, BAND)}".rstrip(), fontsize=10)
    _legend(figure, panels.ravel())
    return figure


def agents_figure(runs: Sequence[Run], rng: np.random.Generator) -> Figure:
    """Each agent on the paper's metric: a row (or two) for each run."""
    chosen = styles(runs)
    rows = [
        (run, list(range(first, min(first + AGENTS_A_ROW, len(run.agents)))))
        for run in runs
        for first in range(0, len(run.agents), AGENTS_A_ROW)
    ]
    columns = max(len(agents) for _, agents in rows)
    width = max(2.7 * columns + 1, 5.4)  # room for the label below
    figure = NotebookFigure(figsize=(width, 2.5 * len(rows) + 1), layout="constrained")
    panels = figure.subplots(len(rows), columns, squeeze=False)
    for line, (run, agents) in zip(panels, rows, strict=True):
        for axes, n in zip(line, agents, strict=False):
            for arm in run.ordered_arms:
                points = [(curve.consumed_E, curve.best[n]) for curve in run.arms[arm].values()]
                _draw(axes, run.label(arm), chosen[run.label(arm)], points, rng)
            axes.set_title(run.agents[n].replace("agent", "Agent"), fontsize=10)
        for axes in line[len(agents) :]:
            axes.set_axis_off()
        line[0].set_ylabel(f"{_title(run)}\nmax mean return", fontsize=9)
    figure.supxlabel(f"{X_LABEL}\n{around_means(runs, BAND)}".rstrip(), fontsize=10)
    _legend(figure, panels.ravel())
    return figure


def exploration_figure(runs: Sequence[Run]) -> Figure:
    """Sensitivity to λ: the paper's metric at a fifth and at all of the budget, t-intervals."""
    runs = [run for run in runs if len(_explorations(run)) > 1]
    figure = NotebookFigure(figsize=(4.4 * len(runs) + 0.8, 3.8), layout="constrained")
    panels = figure.subplots(1, len(runs), squeeze=False)[0]
    for axes, run in zip(panels, runs, strict=True):
        arms = _explorations(run)
        places = np.arange(len(arms))
        for fraction, colour, marker in ((0.2, "#0072B2", "o"), (1.0, "#009E73", "s")):
            found = [
                (place, Estimate.of(list(scores.values())))
                for place, arm in zip(places, arms.values(), strict=True)
                if (scores := welfare_of(run, arm, fraction * run.budget))
            ]
            if not found:
                continue
            means = np.array([estimate.mean for _, estimate in found])
            reach = np.array([estimate.high - estimate.mean for _, estimate in found])
            axes.errorbar(
                [place for place, _ in found],
                means,
                np.where(np.isfinite(reach), reach, 0),  # one seed has no interval
                color=colour,
                marker=marker,
                capsize=3,
                label=f"FedHQL, {fraction:.0%} of the budget",
            )
            if alone := welfare_of(run, INDEPENDENT, fraction * run.budget):
                level = float(np.mean(list(alone.values())))
                name = f"alone, {fraction:.0%}"
                axes.axhline(level, color=colour, linestyle="--", linewidth=1, label=name)
        axes.set_xticks(places, [f"{value:g}" for value in arms])
        axes.set_xlabel("λ")
        axes.set_title(_title(run), fontsize=10)
    panels[0].set_ylabel("max mean return, mean over agents")
    _legend(figure, panels)
    return figure


def profile_figure(runs: Sequence[Run]) -> Figure:
    """The share of agents and seeds that reach a return, at 20 % and at all of the budget."""
    chosen = styles(runs)
    figure = NotebookFigure(figsize=(4.4 * len(runs) + 0.8, 6.6), layout="constrained")
    panels = figure.subplots(2, len(runs), squeeze=False)
    for column, run in zip(panels.T, runs, strict=True):
        scores = {
            (arm, fraction): np.array(
                [c.max_mean() for c in curves_until(run, arm, fraction * run.budget).values()]
            )
            for arm in run.arms
            for fraction in (0.2, 1.0)
        }
        every = np.concatenate([found.ravel() for found in scores.values()] or [np.zeros(1)])
        thresholds = np.linspace(every.min(initial=0), every.max(initial=1), POINTS)
        for axes, fraction in zip(column, (0.2, 1.0), strict=True):
            for arm in run.ordered_arms:
                if scores[arm, fraction].size:
                    name = run.label(arm)
                    colour, dashes = chosen[name]
                    shares = performance_profile(scores[arm, fraction], thresholds)
                    axes.plot(thresholds, shares, color=colour, linestyle=dashes, label=name)
            axes.set_title(f"{_title(run)}, {fraction:.0%} of the budget", fontsize=10)
            axes.set_ylim(-0.02, 1.02)
            axes.set_xlabel("max mean return τ")
            axes.set_ylabel("share of agents and seeds ≥ τ")
    _legend(figure, panels.ravel())
    return figure


def attacks_figure(scores: Sequence[AttackScore]) -> Figure:
    """Which share of their clean performance honest agents keep: rules down, attacks across."""
    counts = sorted({score.attackers for score in scores})
    rows, attacks = row_names(scores), list(dict.fromkeys(score.attack for score in scores))
    size = (0.85 * len(attacks) * len(counts) + 3, 0.55 * len(rows) + 1.6)
    figure = NotebookFigure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(counts), squeeze=False, sharey=True)[0]
    for axes, count in zip(panels, counts, strict=True):
        shares = np.full((len(rows), len(attacks)), np.nan)
        for score in (score for score in scores if score.attackers == count):
            row, column = list(rows).index(score.row), attacks.index(score.attack)
            share = shares[row, column] = np.nan if score.share is None else score.share
            axes.text(
                column,
                row,
                f"{'-' if score.share is None else f'{share:.0%}'}\n{score.best.mean:.4g}",
                size=8,
                ha="center",
                va="center",
                color="white" if share < 0.5 else "black",  # on the dark half of the colours
                weight="normal" if score.withstood else "bold",
            )
        image = axes.imshow(shares, cmap="cividis", vmin=0, vmax=1, aspect="auto")
        axes.set_xticks(range(len(attacks)), attacks, rotation=30, ha="right")
        axes.set_yticks(range(len(rows)), list(rows.values()))
        axes.set_title(f"{count} attacker{'s' * (count > 1)}", fontsize=10)
    figure.colorbar(image, ax=panels.tolist(), label="share of the clean max mean return")
    return figure


def _explorations(run: Run) -> dict[float, str]:
    """λ -> arm, of those that differ in nothing else."""
    arms = {run.exploration(arm): arm for arm in run.federated_arms}
    return {value: arm for value, arm in arms.items() if value is not None}


def _title(run: Run) -> str:
    return f"{run.title}, {seed_count(run)}"


def _draw(
    axes: Axes, name: str, style: Style, seeds: Sequence[Points], rng: np.random.Generator
) -> None:
    """The mean over seeds, with the paper's 80 % band; of two seeds, with both of them."""
    colour, dashes = style
    band: Band = partial(bootstrap_band, rng=rng, resamples=BAND_RESAMPLES)
    x, y, low, high = mean_and_band(seeds, band)
    axes.plot(x, y, color=colour, linestyle=dashes, linewidth=1.8, label=name)
    if len(seeds) >= SEEDS_OF_A_BAND:
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    for each in seeds if 1 < len(seeds) < SEEDS_OF_A_BAND else ():
        axes.plot(*each, color=colour, linestyle=dashes, linewidth=0.7, alpha=0.6)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _legend(figure: Figure, panels: Iterable[Axes]) -> None:
    """One for all panels, above them."""
    entries: dict[str, Any] = {}
    for axes in panels:
        handles, names = axes.get_legend_handles_labels()
        entries = dict(zip(names, handles, strict=True)) | entries
    longest = max(map(len, entries), default=0)
    width = max(LEGEND_COLUMN, LEGEND_LETTER * longest)
    columns = max(1, int(figure.get_figwidth() / width))
    figure.legend(
        entries.values(), entries.keys(), loc="outside upper center", ncols=columns, frameon=False
    )


def _save(figure: Figure, path: Path) -> list[Path]:
    saved = []
    # Compute the layout once for both files.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for suffix in (".png", ".svg"):
        temporary = path.with_suffix(f".tmp{suffix}")
        # No date in the file: the same run gives the same bytes.
        figure.savefig(temporary, dpi=150, metadata={"Date": None} if suffix == ".svg" else None)
        saved.append(temporary.replace(path.with_suffix(suffix)))
    return saved

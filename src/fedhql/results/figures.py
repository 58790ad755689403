"""Learning curves as PNG files."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray

from fedhql.results.arms import INDEPENDENT, label, order
from fedhql.results.records import EvaluationRow, read_rows
from fedhql.results.run_directory import RunDirectory
from fedhql.results.summary import Curve, curves

# Okabe and Ito's palette, told apart by colour-blind readers; linestyles for print.
INDEPENDENT_STYLE = ("#D55E00", "--")
FEDERATED_STYLES = [
    ("#0072B2", "-"),
    ("#009E73", "-."),
    ("#CC79A7", (0, (5, 1))),
    ("#E69F00", (0, (3, 1, 1, 1))),
    ("#56B4E9", (0, (1, 1))),
    ("#000000", "-"),
]
Style = tuple[str, Any]  # colour, linestyle
X_LABEL = "budget consumed per agent (env steps, server's share included)"


def best(row: EvaluationRow) -> float:
    return row.best_mean_return


def each(row: EvaluationRow) -> float:
    return row.mean_return


MEASURES = {"max mean return (the paper's metric)": best, "mean return of each evaluation": each}


def draw_figures(directory: RunDirectory, title: str) -> list[Path]:
    """Write welfare.png (mean over agents) and agents.png (each agent) from evaluations.csv."""
    found = curves(read_rows(directory.evaluations, EvaluationRow))
    if not found:
        return []
    directory.figures.mkdir(exist_ok=True)
    with matplotlib.rc_context({"axes.spines.top": False, "axes.spines.right": False}):
        return [
            _save(_welfare(found, title), directory.figures / "welfare.png"),
            _save(_agents(found, title), directory.figures / "agents.png"),
        ]


def _welfare(found: dict[tuple[str, str], list[Curve]], title: str) -> Figure:
    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    styles = _styles(found)
    for axes, (name, measure) in zip(panels, MEASURES.items(), strict=True):
        for arm in dict.fromkeys(arm for arm, _ in found):
            agents = [seeds for (other, _), seeds in found.items() if other == arm]
            per_seed = list(zip(*agents, strict=True))  # the seed is the unit: average agents first
            points = [_mean_curve(seed, measure) for seed in per_seed]
            _draw(axes, label(arm), styles[arm], points)
        axes.set_title(name, fontsize=10)
    figure.supxlabel(X_LABEL, fontsize=10)
    panels[0].set_ylabel("mean over agents")
    panels[0].legend(frameon=False)
    figure.suptitle(title)
    return figure


def _agents(found: dict[tuple[str, str], list[Curve]], title: str) -> Figure:
    names = list(dict.fromkeys(agent for _, agent in found))
    styles = _styles(found)
    columns = min(5, len(names))
    rows = math.ceil(len(names) / columns)
    figure = Figure(figsize=(2.6 * columns + 1, 2.6 * rows + 0.8), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, name in zip(panels, names, strict=False):
        for (arm, agent), seeds in found.items():
            if agent == name:
                points = [_mean_curve([seed], best) for seed in seeds]
                _draw(axes, label(arm), styles[arm], points)
                x, y = _mean_over_seeds([_mean_curve([seed], each) for seed in seeds])
                axes.plot(x, y, color=styles[arm][0], linestyle=":", linewidth=1.2)
        axes.set_title(name, fontsize=10)
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    panels[0].legend(frameon=False, fontsize=8)
    figure.supxlabel(X_LABEL, fontsize=10)
    figure.supylabel("max mean return\n(dotted: each evaluation)", fontsize=10)
    figure.suptitle(title)
    return figure


Points = tuple[NDArray[np.float64], NDArray[np.float64]]


def _mean_curve(seed_curves: Sequence[Curve], measure: Callable[[EvaluationRow], float]) -> Points:
    """Agents of one seed are evaluated together, so their points line up."""
    x = np.array([row.budget_env_steps for row in seed_curves[0]])
    y = np.array([[measure(row) for row in curve] for curve in seed_curves])
    return x, y.mean(axis=0)


def _styles(found: Iterable[tuple[str, str]]) -> dict[str, Style]:
    arms = sorted({arm for arm, _ in found} - {INDEPENDENT}, key=order)
    federated = {arm: FEDERATED_STYLES[n % len(FEDERATED_STYLES)] for n, arm in enumerate(arms)}
    return {INDEPENDENT: INDEPENDENT_STYLE, **federated}


def _draw(axes: Axes, name: str, style: Style, seeds: Sequence[Points]) -> None:
    """Each seed as a thin line, their mean as a thick one."""
    colour, dashes = style
    if len(seeds) > 1:
        for x, y in seeds:
            axes.plot(x, y, color=colour, linewidth=0.6, alpha=0.4)
    x, y = _mean_over_seeds(seeds)
    axes.plot(x, y, color=colour, linestyle=dashes, linewidth=2, label=name)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _mean_over_seeds(seeds: Sequence[Points]) -> Points:
    """Seeds are evaluated at slightly different consumption: interpolate where all have data."""
    grid = np.unique(np.concatenate([x for x, _ in seeds]))
    first, last = max(x[0] for x, _ in seeds), min(x[-1] for x, _ in seeds)
    grid = grid[(grid >= first) & (grid <= last)]
    return grid, np.mean([np.interp(grid, x, y) for x, y in seeds], axis=0)


def _save(figure: Figure, path: Path) -> Path:
    temporary = path.with_suffix(".tmp.png")
    figure.savefig(temporary, dpi=150)
    return temporary.replace(path)

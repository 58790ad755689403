"""The interactive plots of a report, as Plotly draws them."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from fedhql.results.answer import gains
from fedhql.results.curves import Run
from fedhql.results.statistics import t_band
from fedhql.results.styles import (
    BEST,
    EACH,
    MEASURES,
    SEEDS_OF_A_BAND,
    Points,
    Style,
    around_means,
    mean_and_band,
    seed_count,
)

Panel = dict[str, Any]  # id, height in pixels, traces and layout of one plot
HEIGHT, ROW_HEIGHT, AROUND_ROWS = 300, 34, 110
# Colour and marker, and how far above its row's middle.
OF_BEST, OF_RECENT = ("#0072B2", "circle", 0.15), ("#E69F00", "diamond", -0.15)


def gains_panel(runs: Sequence[Run], level: float) -> Panel:
    """Return the picture that goes with the answers: each arm's gain over alone, a row each."""
    rows = [
        (f"{run.name}: {run.label(gain.arm)}" if len(runs) > 1 else run.label(gain.arm), gain)
        for run in runs
        for gain in gains(run, level)
    ]
    measures = {
        "max mean return": (OF_BEST, [gain.best for _, gain in rows]),
        "mean of the last 10 %": (OF_RECENT, [gain.recent for _, gain in rows]),
    }
    places = range(len(rows) - 1, -1, -1)  # the first row is on top
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": _short(estimate.mean for estimate in found),
            "y": [place + above for place in places],
            "error_x": {"array": _short(e.high - e.mean for e in found), "thickness": 2},
            "marker": {"color": colour, "symbol": symbol, "size": 9},
            "hovertemplate": "%{x:.4g}<extra></extra>",
        }
        for name, ((colour, symbol, above), found) in measures.items()
    ]
    layout = {
        "margin": {"l": 50, "r": 15, "t": 10, "b": 40},
        "legend": {"orientation": "h", "y": 1, "yanchor": "bottom"},
        "xaxis": {
            "title": {"text": f"gain over alone, {level:.0%} t-interval"},
            "zeroline": True,
            "zerolinecolor": "#1a1a1a",
            "zerolinewidth": 2,
        },
        "yaxis": {
            "tickvals": [*places],
            "ticktext": [name for name, _ in rows],
            "range": [-0.5, len(rows) - 0.5],
            "automargin": True,
            "zeroline": False,
        },
    }
    height = AROUND_ROWS + ROW_HEIGHT * len(rows)
    return {"id": "gains", "height": height, "traces": traces, "layout": layout}


def run_panels(
    run: Run, prefix: str, chosen: dict[str, Style], level: float
) -> tuple[list[Panel], list[Panel]]:
    """Mean over agents on both measures; then each agent on the paper's."""
    around = around_means([run], f"{level:.0%} t-interval")
    wide = [
        _panel(
            f"{prefix}-{key}",
            f"{name}<br>{'; '.join(filter(None, [seed_count(run), around]))}",
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
        if len(seeds[arm]) >= SEEDS_OF_A_BAND:
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
        for each in seeds[arm] if 1 < len(seeds[arm]) < SEEDS_OF_A_BAND else ():
            alone = dict(zip("xy", map(_short, each), strict=True))
            line = {"color": colour, "width": 0.7}
            traces.append(common | alone | {"line": line, "hoverinfo": "skip"})
        hover = f"{name}: %{{y:.1f}}<extra></extra>"
        traces.append(
            common
            | {"x": _short(x), "y": _short(mean), "name": name, "hovertemplate": hover}
            | {"line": {"color": colour, "width": 2}}
        )
    layout = {
        "title": {"text": title, "font": {"size": 14}, "x": 0.02},
        "margin": {"l": 50, "r": 15, "t": 40 + 15 * title.count("<br>"), "b": 40},
        "hovermode": "x unified",
        "xaxis": {"title": {"text": "env steps per agent"}, "range": [0, run.budget]},
        "yaxis": {"title": {"text": "return"}},
    }
    return {"id": place, "height": HEIGHT, "traces": traces, "layout": layout}


def _short(values: Iterable[float]) -> list[float | None]:
    """Five digits are more than a screen shows. JSON has no NaN: a gap."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]

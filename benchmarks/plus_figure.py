"""Draw `-plus` beside the paper's server and agents alone, from the committed runs.

`python benchmarks/plus_figure.py --out docs/plus/returns.png` makes the picture of docs/plus.md.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from fedhql.results.load import load_run
from fedhql.results.statistics import t_band
from fedhql.results.styles import FEDERATED_STYLES, INDEPENDENT_STYLE, mean_and_band
from fedhql.storage.arm_names import FEDHQL, INDEPENDENT

DOCS = Path(__file__).parent.parent / "docs"
LEAST_SEED_OF_SEARCHES = 100


class Panel(NamedTuple):
    """One task: its runs under docs/, and how they are shown."""

    paper: str  # the paper's server and agents alone
    plus: str
    returns: tuple[float, float]


# No return of CartPole is above 500, though a t-interval of few seeds is.
CARTPOLE, LUNARLANDER = (0, 520), (-400, 250)
PANELS = {
    "CartPole, 5 agents": Panel(
        "reproduction/h200/cartpole-n5", "plus/sceptics/cartpole-n5-whole", CARTPOLE
    ),
    "CartPole, 10 agents": Panel(
        "reproduction/h200/cartpole-n10", "plus/sceptics/cartpole-n10-report", CARTPOLE
    ),
    "LunarLander, 5 agents": Panel(
        "reproduction/lander-20/lunarlander-n5", "plus/recalled-full/lunarlander-n5", LUNARLANDER
    ),
    "LunarLander, 10 agents": Panel(
        "reproduction/h200/lunarlander-n10", "plus/recalled-full/lunarlander-n10", LUNARLANDER
    ),
}


def draw(axes: Axes, panel: Panel) -> None:
    """Draw the mean over agents of each evaluation, with 95 % t-bands over seeds."""
    base = load_run(DOCS / panel.paper)
    (of_plus,) = load_run(DOCS / panel.plus).after_rounds.values()
    lines = {
        "alone": (base.arms[INDEPENDENT], INDEPENDENT_STYLE),
        "the paper's server": (base.after_rounds[FEDHQL], FEDERATED_STYLES[0]),
        "-plus": (of_plus, FEDERATED_STYLES[1]),
    }
    end = min(curve.consumed_E[-1] for curve in of_plus.values())
    for name, (curves_S, (colour, dashes)) in lines.items():
        seeds = [
            (of.consumed_E, of.returns_NE.mean(axis=0))
            for seed, curve in curves_S.items()
            if seed < LEAST_SEED_OF_SEARCHES and (of := curve.until(end))
        ]
        x, mean, low, high = mean_and_band(seeds, t_band)
        axes.plot(x, mean, color=colour, linestyle=dashes, label=f"{name}, {len(seeds)} seeds")
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.legend(frameon=False, fontsize=9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    figure = Figure(figsize=(10, 7.2), layout="constrained")
    for axes, (title, panel) in zip(figure.subplots(2, 2).ravel(), PANELS.items(), strict=True):
        axes.set_ylim(*panel.returns)
        draw(axes, panel)
        axes.set_title(title)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("env steps per agent, the server's share included", fontsize=10)
    figure.supylabel("mean return (federated: after rounds)", fontsize=10)
    figure.savefig(parser.parse_args().out, dpi=150)


if __name__ == "__main__":
    main()

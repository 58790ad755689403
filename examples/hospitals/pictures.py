"""Draw what the hospitals gain, and one patient's course under each policy.

    python -m examples.hospitals.pictures RUN ARCHIVE

from the repository's root. RUN is the directory of the experiment, which holds the policies, and
ARCHIVE what `fedhql archive`, and perhaps `examples.hospitals.consensus`, have made of it. The
pictures are written to ARCHIVE.
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from examples.hospitals.clinic import Courses, always, treat
from examples.hospitals.consensus import read_consensus
from examples.hospitals.hiv import DAYS
from fedhql.engines.kept_agents import kept_agents
from fedhql.results.load import load_run
from fedhql.results.statistics import t_band
from fedhql.storage.records import CONSENSUS
from fedhql.storage.run_directory import Cell

ARMS = {"alone": "independent", "federated": "fedhql"}
COLOURS = {
    "no drug": "0.6",
    "both drugs always": "black",
    "alone": "tab:orange",
    "federated": "tab:blue",
    "consensus": "tab:green",
}
# Of a state: its place, and what a physician calls it.
SHOWN = {0: "healthy CD4+ T cells", 5: "immune response", 4: "free viruses"}


def main(run: Path, archive: Path) -> None:
    sys.path.append(str(Path(__file__).parent))  # the run's environment is named hiv:HIV-v0
    returns = returns_by_arm(archive)
    draw_gain(returns).savefig(archive / "gain.png", dpi=110)
    draw_courses(courses_of(run, returns)).savefig(archive / "courses.png", dpi=90)


def returns_by_arm(archive: Path) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Return, for each hospital and arm of the run, the returns of its best policy by seed.

    If the archive has the returns of the consensus policy, CONSENSUS has those of hospitals that
    learned alone. They are the same for all hospitals.
    """
    run, together = load_run(archive), read_consensus(archive)
    seeds = sorted({cell.seed for cell in run.best_returns})
    of_arms = {
        word: np.array([run.best_returns[Cell(arm, seed)] for seed in seeds])
        for word, arm in ARMS.items()
        if arm in run.manifest["arms"]
    }
    if together:
        consensus_S = np.array([together[Cell(ARMS["alone"], seed)] for seed in seeds])
        of_arms[CONSENSUS] = np.tile(consensus_S[:, None], len(run.agents))
    return {
        name: {word: returns_SN[:, n] for word, returns_SN in of_arms.items()}
        for n, name in enumerate(run.agents)
    }


def draw_gain(returns: Mapping[str, Mapping[str, NDArray[np.float64]]]) -> Figure:
    """Draw the means over seeds with 95 % intervals, for each hospital and for the mean of all."""
    names = [*returns, "mean of all"]
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    for shift, word in zip((-0.15, 0.15), next(iter(returns.values())), strict=True):
        values_SN = np.array([of_arm[word] for of_arm in returns.values()]).T
        values_SN = np.column_stack([values_SN, values_SN.mean(axis=1)])
        at_N, (low_N, high_N) = np.arange(len(names)) + shift, t_band(values_SN)
        axes.vlines(at_N, np.maximum(low_N, 0), high_N, colors=COLOURS[word], linewidth=2)
        axes.plot(at_N, values_SN.mean(axis=0), "o", color=COLOURS[word], label=word, markersize=8)
        for at, values_S in zip(at_N, values_SN.T, strict=True):
            axes.plot(np.full(len(values_S), at), values_S, ".", color=COLOURS[word], alpha=0.3)
    axes.set_xticks(range(len(names)), names)
    axes.axvline(len(names) - 1.5, color="0.85")
    axes.set_ylabel("return of 1,000 days")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def courses_of(run: Path, hospitals: Mapping[str, Iterable[str]]) -> dict[str, dict[str, Courses]]:
    """Treat the published patient by policies of the lowest seed.

    `hospitals` has each hospital's words: "alone" and "federated" are its best policies.
    """

    def course(name: str, word: str) -> Courses:
        if word == CONSENSUS:
            policy = kept_agents(run, ARMS["alone"], None, "last").policy(CONSENSUS)
        else:
            policy = kept_agents(run, ARMS[word], None, "best").policy(name)
        return treat(policy.answer, 1, 0, spread=0)

    same = {
        "no drug": treat(always(0), 1, seed=0, spread=0),
        "both drugs always": treat(always(3), 1, seed=0, spread=0),
    }
    return {
        name: same | {word: course(name, word) for word in words}
        for name, words in hospitals.items()
    }


def draw_courses(courses: Mapping[str, Mapping[str, Courses]]) -> Figure:
    """Draw a row of panels for each shown variable, and a column for each hospital."""
    figure = Figure(figsize=(3 * len(courses), 7.5), layout="constrained")
    panels = figure.subplots(len(SHOWN), len(courses), sharex=True, sharey="row", squeeze=False)
    for row, (place, variable) in zip(panels, SHOWN.items(), strict=True):
        for axes, of_hospital in zip(row, courses.values(), strict=True):
            _draw_variable(axes, of_hospital, place)
        row[0].set_ylabel(f"{variable}\nper ml of blood")
    for axes, name in zip(panels[0], courses, strict=True):
        axes.set_title(name)
    for axes in panels[-1]:
        axes.set_xlabel("days")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return figure


def _draw_variable(axes: Axes, courses: Mapping[str, Courses], place: int) -> None:
    for word, course in courses.items():
        states_T = course.states_PTS[0, :, place]
        style = "--" if word == "both drugs always" else "-"
        axes.plot(DAYS * np.arange(len(states_T)), states_T, style, color=COLOURS[word], label=word)
    axes.set_yscale("log")
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

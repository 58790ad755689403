"""Search what a server should choose past the paper, and rank it by a rule written before.

`python benchmarks/plus_search.py run --out runs/plus-search` runs every candidate on three tasks
with seeds apart from those of the results, and continues where it was stopped.
`python benchmarks/plus_search.py record runs/plus-search --out docs/plus/search.csv` keeps a small
table of it, one row for each task, candidate and seed.
`python benchmarks/plus_search.py rank docs/plus/search.csv` prints the candidates, best first.
`python benchmarks/plus_search.py compare docs/plus/search.csv` prints their returns, and
their gains over the first `-plus` and over agents alone. `rank` and `compare` also take the folder
of the runs, or of their archives.

The rule: a candidate's score on a task is the mean return over the second half of its evaluations
(after self-learning; over agents, then seeds), less the task's zero and divided by its scale. Its
worst task counts; the mean over tasks decides ties.
"""

import argparse
import csv
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedhql.results.curves import Arms
from fedhql.results.load import load_run
from fedhql.results.objectives import Estimate
from fedhql.results.paper_experiments import CARTPOLE_5, CARTPOLE_10, LUNARLANDER_5, Experiment
from fedhql.storage.arm_names import INDEPENDENT, label
from fedhql.storage.run_directory import Cell

SEEDS = "100,101,102,103,104"
SHARE = 0.2  # of the budget


class Task(NamedTuple):
    """A task of the search."""

    experiment: Experiment
    zero: float  # the return that scores 0
    interval_env_steps: int  # between evaluations; those of LunarLander take long


TASKS = {
    "cartpole-n5": Task(CARTPOLE_5, 0.0, 5_000),
    "cartpole-n10": Task(CARTPOLE_10, 0.0, 5_000),
    "lunarlander-n5": Task(LUNARLANDER_5, -100.0, 20_000),
}
MEASURED = (*TASKS, "lunarlander-n10")  # the last is too slow to search on
RULES = ("bellman-weighted", "mean-std", "median-mad", "hampel")
PLUS = "rule=bellman-weighted,pessimism=0"  # the server that the presets `-plus` had first
ARMS = (
    INDEPENDENT,
    *(f"rule={rule},pessimism={mu}" for rule in RULES for mu in (0, 1)),
    "rule=median-mad,pessimism=0.5",
    "rule=median-mad,pessimism=1.5",
    "rule=hampel,pessimism=1.5",
    "rule=mean-std,pessimism=1.5",
    "rule=median-mad,pessimism=1,learning_rate=0.5",
    "rule=median-mad,pessimism=1,exploration=0",
    "rule=median-mad,pessimism=1,replay_batch=96",  # chosen: the second `-plus`
)


class Row(NamedTuple):
    """One candidate on one task with one seed: means over agents, after self-learning."""

    task: str
    arm: str
    seed: int
    env_steps: int
    max_mean: float
    second_half: float
    second_half_after_rounds: float
    second_half_consensus: float
    expected: float  # at the start of an episode, in the last tenth of the evaluations
    discounted: float  # the return that it got there, discounted


def run(out: Path) -> None:
    command = [sys.executable, "-m", "fedhql"]
    arms = [part for arm in ARMS for part in ("--arm", arm)]
    for name, task in TASKS.items():
        budget = round(SHARE * task.experiment.budget)
        subprocess.run(
            [*command, "run", f"{name}-plus", *arms, "--seeds", SEEDS, "--budget", str(budget),
             "--set", f"evaluation.interval_env_steps={task.interval_env_steps}",
             "--set", "evaluation.moments=both", "--set", "federation.replay_batch=0",
             "--set", "federation.replay_capacity=50000", "--set", "federation.random_actions=0",
             "--out", str(out / name), "--resume"],
            check=True,
        )  # fmt: skip


def record(rows: Sequence[Row], out: Path) -> None:
    with out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        for row in rows:
            writer.writerow([f"{v:.5g}" if isinstance(v, float) else v for v in row])


def rows_in(home: Path) -> list[Row]:
    return [
        row for task in MEASURED if (home / task).exists() for row in rows_of(task, home / task)
    ]


def rows_of(task: str, home: Path) -> Iterator[Row]:
    run = load_run(home)
    for arm in run.ordered_arms:
        for seed, curve in sorted(run.arms[arm].items()):
            measured = run.measures[Cell(arm, seed)]
            yield Row(
                task,
                arm,
                seed,
                round(curve.consumed_E[-1]),
                float(curve.max_mean().mean()),
                float(curve.second_half_mean().mean()),
                _second_half(run.after_rounds, arm, seed),
                _second_half(run.consensus, arm, seed),
                float(measured.start_values_N.mean()),
                float(measured.discounted_N.mean()),
            )


def _second_half(arms: Arms, arm: str, seed: int) -> float:
    """NaN for agents alone, which have no rounds and no consensus."""
    curve = arms.get(arm, {}).get(seed)
    return float("nan") if curve is None else float(curve.second_half_mean().mean())


def read(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return [
            Row(task, arm, int(seed), int(env_steps), *map(float, numbers))
            for task, arm, seed, env_steps, *numbers in list(csv.reader(file))[1:]
        ]


def score(rows: Sequence[Row]) -> float:
    """Return the score of one candidate on one task, from its seeds."""
    task = TASKS[rows[0].task]
    return float((np.mean([row.second_half for row in rows]) - task.zero) / task.experiment.scale)


def rank(rows: Sequence[Row]) -> str:
    """Return the table of candidates that every task has, best first."""
    found: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        found[row.arm][row.task].append(row)
    tasks = [task for task in TASKS if any(task in of for of in found.values())]
    scores = {
        arm: [score(of[task]) for task in tasks]
        for arm, of in found.items()
        if all(task in of for task in tasks)
    }
    best = sorted(scores, key=lambda arm: (min(scores[arm]), np.mean(scores[arm])), reverse=True)
    lines = [f"| choice | {' | '.join(tasks)} | worst |", "|---|" + "---:|" * (len(tasks) + 1)]
    for arm in best:
        scored = zip(tasks, scores[arm], strict=True)
        cells = [f"{each:.3f} ({len(found[arm][task])})" for task, each in scored]
        lines.append(f"| {label(arm)} | {' | '.join(cells)} | {min(scores[arm]):.3f} |")
    return "\n".join(lines)


def compare(rows: Sequence[Row]) -> str:
    """Return the table of returns, with gains of the second half seed by seed."""
    lines = [
        "| task | choice | best | second half | after rounds | consensus | expects / gets "
        "| gain over the first `-plus` | gain over alone |",
        "|---|---|" + "---:|" * 7,
    ]
    for task, arm in dict.fromkeys((row.task, row.arm) for row in rows):
        of_arm = [row for row in rows if (row.task, row.arm) == (task, arm)]
        names = ("max_mean", "second_half", "second_half_after_rounds", "second_half_consensus")
        means = [float(np.mean([getattr(row, name) for row in of_arm])) for name in names]
        expected, discounted = (
            np.mean([getattr(row, name) for row in of_arm]) for name in ("expected", "discounted")
        )
        cells = ["-" if np.isnan(mean) else f"{mean:.0f}" for mean in means]
        cells.append(f"{expected:.0f} / {discounted:.0f}")
        others = {row.arm for row in rows if row.task == task} - {arm}
        for other in (PLUS, INDEPENDENT):
            gain = str(Estimate.of(gains(rows, task, arm, other))) if other in others else "-"
            cells.append(gain)
        lines.append(f"| {task} | {label(arm)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def gains(
    rows: Sequence[Row], task: str, arm: str, other: str, column: str = "second_half"
) -> NDArray[np.float64]:
    """Return how far `arm` is above `other` in a column, seed by seed."""
    found = {(row.arm, row.seed): getattr(row, column) for row in rows if row.task == task}
    seeds = sorted({row.seed for row in rows if (row.task, row.arm) == (task, arm)})
    return np.array([found[arm, seed] - found[other, seed] for seed in seeds])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run").add_argument("--out", type=Path, required=True)
    recorder = commands.add_parser("record")
    recorder.add_argument("runs", type=Path)
    recorder.add_argument("--out", type=Path, required=True)
    for name in ("rank", "compare"):
        commands.add_parser(name).add_argument("runs", type=Path, help="a table or a folder")
    arguments = parser.parse_args()
    if arguments.command == "run":
        run(arguments.out)
        return
    runs = arguments.runs
    rows = rows_in(runs) if runs.is_dir() else read(runs)
    if not rows:
        sys.exit(f"{runs} has none of {', '.join(MEASURED)}")
    if arguments.command == "record":
        record(rows, arguments.out)
    else:
        print({"rank": rank, "compare": compare}[arguments.command](rows))


if __name__ == "__main__":
    main()

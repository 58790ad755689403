"""Search what a server should choose past the paper, and rank it by a rule written before.

`python benchmarks/plus_search.py run --out runs/plus-search` runs every candidate on three tasks
with seeds that no report uses, continues where it was stopped, and keeps small curves.
`python benchmarks/plus_search.py rank runs/plus-search/archive` prints the table from these curves.

The rule: a candidate's score on a task is the mean return over the second half of its evaluations
(after self-learning; over agents, then seeds), less the task's worst return and divided by its
scale. Its worst task counts; the mean over tasks decides ties.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from fedhql.results.curves import Run
from fedhql.results.load import load_run
from fedhql.results.paper_experiments import CARTPOLE_5, CARTPOLE_10, LUNARLANDER_5
from fedhql.storage.arm_names import INDEPENDENT, label

SEEDS = "100,101,102,103,104"
SHARE = 0.2  # of the budget
# The task's experiment, and the return of an agent that has learned nothing.
TASKS = {
    "cartpole-n5": (CARTPOLE_5, 0.0),
    "cartpole-n10": (CARTPOLE_10, 0.0),
    "lunarlander-n5": (LUNARLANDER_5, -100.0),
}
RULES = ("bellman-weighted", "mean-std", "median-mad", "hampel")
ARMS = (
    INDEPENDENT,
    *(f"rule={rule},pessimism={mu}" for rule in RULES for mu in (0, 0.5, 1, 1.5)),
    "rule=bellman-weighted,pessimism=1,learning_rate=0.5",
    "rule=bellman-weighted,pessimism=1,exploration=0",
    "rule=bellman-weighted,pessimism=1,exploration=3",
    "rule=bellman-weighted,pessimism=1,server_environments=reset",
)


def run(out: Path) -> None:
    command = [sys.executable, "-m", "fedhql"]
    arms = [part for arm in ARMS for part in ("--arm", arm)]
    for task, (experiment, _) in TASKS.items():
        budget = round(SHARE * experiment.budget)
        subprocess.run(
            [*command, "run", f"{task}-plus", *arms, "--seeds", SEEDS, "--budget", str(budget),
             "--set", "evaluation.moments=both", "--out", str(out / task), "--resume"],
            check=True,
        )  # fmt: skip
    subprocess.run([*command, "archive", str(out), "--out", str(out / "archive")], check=True)


def scores(tasks: Mapping[str, Run]) -> Iterator[tuple[str, list[float]]]:
    """Return each arm that all tasks have run, with its score on each task."""
    arms = [set(run.arms) for run in tasks.values()]
    for arm in sorted(set.intersection(*arms)):
        yield (
            arm,
            [
                float(
                    (np.mean([c.second_half_mean() for c in run.arms[arm].values()]) - worst)
                    / experiment.scale
                )
                for run, (experiment, worst) in ((run, TASKS[task]) for task, run in tasks.items())
            ],
        )


def rank(home: Path) -> None:
    tasks = {task: load_run(home / task) for task in TASKS if (home / task).exists()}
    if not tasks:
        sys.exit(f"{home} has none of {', '.join(TASKS)}")
    found = sorted(scores(tasks), key=lambda each: (min(each[1]), np.mean(each[1])), reverse=True)
    print("| choice |", " | ".join(tasks), "| worst |\n|---|" + "---:|" * (len(tasks) + 1))
    for arm, of_tasks in found:
        print(
            f"| {label(arm)} |",
            " | ".join(f"{s:.3f}" for s in of_tasks),
            f"| {min(of_tasks):.3f} |",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run").add_argument("--out", type=Path, required=True)
    commands.add_parser("rank").add_argument("home", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "run":
        run(arguments.out)
    else:
        rank(arguments.home)


if __name__ == "__main__":
    main()

"""docs/plus.md says what the committed curves say, and robustness.md what attacks.csv says."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.plus_search import Row, rank, read
from fedhql.results.curves import Curve
from fedhql.results.load import load_run
from fedhql.results.objectives import curves_until
from fedhql.results.statistics import t_interval

DOCS = Path(__file__).parents[2] / "docs"
CARTPOLE_5, CARTPOLE_10 = ("reproduction/earlier/cartpole-n5", "reproduction/earlier/cartpole-n10")
LUNARLANDER_5 = "reproduction/earlier/lunarlander-n5"
FIRST, SECOND = range(5), range(5, 10)


def curves(home: str, env_steps: int, seeds: range) -> list[Curve]:
    found = curves_until(load_run(DOCS / home), "fedhql", env_steps)
    return [found[seed] for seed in seeds if seed in found]


def figures(home: str, env_steps: int, seeds: range = FIRST) -> tuple[float, float]:
    """Means over agents and seeds of the paper's metric and of the last tenth of evaluations."""
    there = curves(home, env_steps, seeds)
    best = np.mean([curve.max_mean() for curve in there])
    return float(best), float(np.mean([curve.recent_mean() for curve in there]))


def said(home: str, env_steps: int, seeds: range = FIRST) -> str:
    best, recent = figures(home, env_steps, seeds)
    return f"{best:.0f} ({recent:.0f})"


def row_of(page: str, start: str) -> list[str]:
    (row,) = [line for line in (DOCS / page).read_text().splitlines() if line.startswith(start)]
    return [cell.strip() for cell in row.strip("|").split("|")]


@pytest.mark.parametrize(
    ("task", "paper", "plus", "env_steps"),
    [
        ("CartPole N=5, 20 %", CARTPOLE_5, "plus/cartpole-n5-plus-agents", 400_000),
        ("CartPole N=5, the whole", CARTPOLE_5, "plus/cartpole-n5-plus-agents", 2_000_000),
        ("CartPole N=10, 20 %", CARTPOLE_10, "plus/cartpole-n10-plus-agents", 400_000),
        ("LunarLander N=5, 20 %", LUNARLANDER_5, "plus/lunarlander-n5-plus-agents", 800_000),
    ],
)
def test_the_table_is_the_curves(task: str, paper: str, plus: str, env_steps: int) -> None:
    _, theirs, as_presets, ours, again = row_of("plus.md", f"| {task}")
    assert said(paper, env_steps) in theirs
    assert said(paper.replace("earlier", "h200"), env_steps) == as_presets
    assert said(plus, env_steps) in ours
    if "N=10" not in task:
        assert said(plus, env_steps, SECOND) in again
        assert len(curves(plus, env_steps, SECOND)) == 5
    assert len(curves(plus, env_steps, FIRST)) == 5


def test_what_plus_was_made_for() -> None:
    """On both halves of the seeds, where there are two."""
    for seeds in (FIRST, SECOND):
        at_20_percent = curves("plus/cartpole-n5-plus-agents", 400_000, seeds)
        assert np.mean([curve.max_mean() for curve in at_20_percent], axis=0).min() >= 495
        recent = figures("plus/cartpole-n5-plus-agents", 2_000_000, seeds)[1]
        assert recent >= 3 * figures(CARTPOLE_5, 2_000_000)[1]
        lunarlander = figures("plus/lunarlander-n5-plus-agents", 800_000, seeds)
        paper = figures(LUNARLANDER_5, 800_000)
        assert lunarlander[0] > paper[0]
        assert lunarlander[1] > paper[1]
    assert (
        figures("plus/cartpole-n10-plus-agents", 400_000)[0]
        >= 1.1 * figures(CARTPOLE_10, 400_000)[0]
    )


def test_the_attacks_are_the_csvs() -> None:
    found = {(row["run"], row["attack"], row["attackers"]): row for row in attacks()}
    page = (DOCS / "robustness.md").read_text()
    checked = 0
    for attackers in ("1", "2"):
        head, _, *lines = page[page.index(f"| {attackers} of 5 |") :].split("\n\n")[0].splitlines()
        names = re.findall(r"`(.*?)`", head)
        for line in lines:
            rule, clean, *cells = [cell.strip() for cell in line.strip("|").split("|")]
            run = rule.replace("`", "").replace(" ", "-")
            rows = [found[run, name, attackers] for name in names]
            assert cells == [cell_of(row) for row in rows]
            assert {clean} == {told(row["clean_best"], row["clean_recent"]) for row in rows}
            checked += len(rows)
    assert checked == len(found)


def attacks() -> list[dict[str, str]]:
    with (DOCS / "attacks.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def told(best: str, recent: str) -> str:
    return f"{float(best):.0f} ({float(recent):.0f})"


def cell_of(row: dict[str, str]) -> str:
    share, text = float(row["share_of_clean"]), told(row["best"], row["recent"])
    return text if share >= 0.9 else f"**{text} {share:.0%}**"


def test_the_search_is_its_table() -> None:
    rows = read(DOCS / "plus" / "search.csv")
    page = (DOCS / "plus.md").read_text()
    assert rank(rows) in page
    by_arm = {(row.arm, row.seed): row for row in rows}
    seeds = range(100, 105)

    def gains(rule: str) -> list[float]:
        """What μ = 1 adds to μ = 0, seed by seed."""
        zero, one = (f"rule={rule},pessimism={mu}" for mu in (0, 1))
        return [by_arm[one, s].second_half - by_arm[zero, s].second_half for s in seeds]

    of_rules = {
        rule: np.array(gains(rule))
        for rule in ("bellman-weighted", "mean-std", "median-mad", "hampel")
    }
    means = [gains_S.mean() for gains_S in of_rules.values()]
    assert f"by {min(means):.0f} to {max(means):.0f} in return" in " ".join(page.split())
    shown = {rule: t_interval(gains_S) for rule, gains_S in of_rules.items()}
    assert [rule for rule, (low, _) in shown.items() if low > 0] == ["median-mad"]
    low, high = shown["median-mad"]
    assert (
        f"`median-mad` excludes 0: {of_rules['median-mad'].mean():.0f} [{low:.0f}, {high:.0f}]"
        in page
    )


def test_the_worst_task_decides_the_rank() -> None:
    def row(task: str, arm: str, second_half: float) -> Row:
        return Row(task, arm, 100, 1, 0.0, second_half, 0.0, 0.0, 0.0, 0.0)

    even = [row("cartpole-n5", "pessimism=1", 200.0), row("cartpole-n10", "pessimism=1", 200.0)]
    uneven = [row("cartpole-n5", "pessimism=2", 500.0), row("cartpole-n10", "pessimism=2", 100.0)]
    partial = [row("cartpole-n5", "pessimism=3", 500.0)]
    assert rank([*partial, *uneven, *even]).splitlines()[2:] == [
        "| μ = 1 | 0.400 (1) | 0.400 (1) | 0.400 |",
        "| μ = 2 | 1.000 (1) | 0.200 (1) | 0.200 |",
    ]

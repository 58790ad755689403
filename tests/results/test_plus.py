"""docs/plus.md says what the committed curves say, and robustness.md what attacks.csv says."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.plus_search import RULES, Row, compare, rank, read
from fedhql.results.curves import Curve
from fedhql.results.load import load_run
from fedhql.results.objectives import Estimate, curves_until
from fedhql.results.statistics import t_interval
from fedhql.storage.arm_names import INDEPENDENT, label

DOCS = Path(__file__).parents[2] / "docs"
CARTPOLE_5, CARTPOLE_10 = ("reproduction/earlier/cartpole-n5", "reproduction/earlier/cartpole-n10")
LUNARLANDER_5 = "reproduction/earlier/lunarlander-n5"
FIRST, SECOND = range(5), range(5, 10)
BELLMAN = "rule=bellman-weighted,pessimism={}"


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


def test_the_searches_are_their_tables() -> None:
    rows, earlier = (read(DOCS / "plus" / f"{name}.csv") for name in ("search", "search-first"))
    appendix = (DOCS / "plus" / "search.md").read_text()
    for table in (rank(rows), compare(rows), rank(earlier)):
        assert f"\n\n{table}\n\n" in appendix
    known = compare(rows).splitlines()
    page = (DOCS / "plus.md").read_text()
    shown = re.findall(r"^\| (?:task|cartpole|lunarlander).*$", page, re.M)
    assert len(shown) == 1 + 3 * 4
    assert [line for line in known if line in shown] == shown
    means = {
        (row.task, row.arm): f"{np.mean([x.second_half for x in of_arm]):.0f}"
        for row in rows
        for of_arm in [[x for x in rows if (x.task, x.arm) == (row.task, row.arm)]]
    }
    best = {"cartpole-n10": "rule=median-mad,pessimism=1.5", "cartpole-n5": BELLMAN.format(1)}
    told = page.partition("\n| task")[0]
    for task, arm in best.items():
        n = task.removeprefix("cartpole-n")
        (bullet,) = re.findall(rf"^- \*\*CartPole N={n}\*\*.*?(?=^- |\n\n)", told, re.M | re.S)
        numbers = re.findall(r"\b\d{2,}\b(?! %)", bullet)
        arms = (arm, BELLMAN.format(0), INDEPENDENT)
        assert {means[task, each] for each in arms} <= {*numbers}
        (gain,) = re.findall(r"\d+ \[\d+, \d+\]", bullet)
        (row,) = [each for each in known if f"| {task} | {label(arm)} |" in each]
        assert f"| {gain} |" in row


def test_what_the_search_showed() -> None:
    rows = read(DOCS / "plus" / "search.csv")
    for task in ("cartpole-n5", "cartpole-n10"):
        for rule in RULES:
            assert pessimism_gains(rows, task, rule).mean() > 0
    first, *others = rank(rows).splitlines()[2:]  # on LunarLander all are below alone
    scores = [float(line.split(" | ")[3].split()[0]) for line in (first, *others)]
    assert first.startswith("| alone |")
    assert scores[0] > max(scores[1:])
    limited = [row for row in rows if "target_limit" in row.arm]
    same = {(row.task, row.arm, row.seed): row[3:] for row in rows}
    assert len(limited) == 15
    assert all(row[3:] == same[row.task, BELLMAN.format(1), row.seed] for row in limited)


def test_what_the_first_stage_showed() -> None:
    rows = read(DOCS / "plus" / "search-first.csv")
    page = " ".join((DOCS / "plus" / "search.md").read_text().split())
    of_rules = {rule: pessimism_gains(rows, "cartpole-n5", rule) for rule in RULES}
    means = [gains_S.mean() for gains_S in of_rules.values()]
    assert f"by {min(means):.0f} to {max(means):.0f} in return" in page
    shown = {rule: t_interval(gains_S) for rule, gains_S in of_rules.items()}
    assert [rule for rule, (low, _) in shown.items() if low > 0] == ["median-mad"]
    told = Estimate.of(of_rules["median-mad"])
    assert f"`median-mad` excludes 0: {told}" in page


def pessimism_gains(rows: list[Row], task: str, rule: str) -> NDArray[np.float64]:
    """What μ = 1 adds to μ = 0, seed by seed."""
    found = {(row.arm, row.seed): row.second_half for row in rows if row.task == task}
    zero, one = (f"rule={rule},pessimism={mu}" for mu in (0, 1))
    return np.array([found[one, seed] - found[zero, seed] for seed in range(100, 105)])


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

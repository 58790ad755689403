"""docs/plus.md says what the committed curves say, and robustness.md what attacks.csv says."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from fedhql.results.curves import Curve
from fedhql.results.load import load_run
from fedhql.results.objectives import curves_until

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

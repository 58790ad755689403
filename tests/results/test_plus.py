"""docs/plus.md says what the committed curves say, and robustness.md what attacks.csv says."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.plus_search import PLUS, RULES, TASKS, Row, compare, gains, rank, read
from fedhql.results.curves import Curve
from fedhql.results.load import load_run
from fedhql.results.objectives import Estimate, curves_until
from fedhql.storage.arm_names import INDEPENDENT

DOCS = Path(__file__).parents[2] / "docs"
CARTPOLE_5, CARTPOLE_10 = ("reproduction/earlier/cartpole-n5", "reproduction/earlier/cartpole-n10")
LUNARLANDER_5 = "reproduction/earlier/lunarlander-n5"
FIRST, SECOND = range(5), range(5, 10)
PESSIMISTIC = "rule=bellman-weighted,pessimism=1"


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


SEARCH, FIRST_STAGE, BROADCAST, TEN_SEEDS, LARGE_ROUNDS, WIDE_ROUNDS = (
    read(DOCS / "plus" / f"search{name}.csv")
    for name in ("", "-first", "-broadcast", "-reset", "-rounds", "-wide")
)
BASELINES = read(DOCS / "plus" / "baselines.csv")
IN_BOTH_SEARCHES = ("cartpole-n5", "rule=median-mad,pessimism=1.5")
WIDE = "horizon_steps=8,query_batch=512"
LIMIT = "target_limit=1000"  # a setting that was removed


PAPERS, PAPERS_ON_LUNARLANDER = (
    f"rule=mean-std,broadcast=chosen,learning_rate=0.05,query_batch=128,self_learning_env_steps={K},"
    "server_environments=reset"
    for K in (5_000, 10_000)
)


def told_of_gain(task: str, arm: str, other: str, rows: list[Row] = SEARCH) -> str:
    return str(Estimate.of(gains(rows, task, arm, other)))


def second_half(task: str, arm: str, rows: list[Row] = SEARCH) -> str:
    found = [row.second_half for row in rows if (row.task, row.arm) == (task, arm)]
    return f"{np.mean(found):.0f}"


def words(page: str) -> str:
    return " ".join((DOCS / page).read_text().split())


def test_the_searches_are_their_tables() -> None:
    appendix = (DOCS / "plus" / "search.md").read_text()
    searches = (SEARCH, BROADCAST, TEN_SEEDS, LARGE_ROUNDS, WIDE_ROUNDS)
    for table in (rank(SEARCH), rank(FIRST_STAGE), *map(compare, searches)):
        assert f"\n\n{table}\n\n" in appendix
    assert f"\n\n{compare(BASELINES)}\n\n" in (DOCS / "plus.md").read_text()


def test_what_is_told_of_pessimism() -> None:
    page, appendix = words("plus.md"), words("plus/search.md")
    best = "rule=median-mad,pessimism=1.5"
    for task, seeds, rows in (("N=10", "5 seeds", SEARCH), ("N=5", "10 seeds", TEN_SEEDS)):
        name = f"cartpole-{task.lower().replace('=', '')}"
        mean, of_plus, of_alone = (
            second_half(name, arm, rows) for arm in (best, PLUS, INDEPENDENT)
        )
        assert (
            f"**CartPole {task}**, {seeds}: {mean} with `median-mad` and μ = 1.5. It is {of_plus} "
            f"for `-plus` and {of_alone} for agents alone. The gain over `-plus` is "
            f"{told_of_gain(name, best, PLUS, rows)}." in page
        )
    assert f"The paper's server has {second_half(name, PAPERS, TEN_SEEDS)}." in page
    for rule in RULES:
        zero, one = (f"rule={rule},pessimism={mu}" for mu in (0, 1))
        added = " | ".join(told_of_gain(task, one, zero) for task in TASKS)
        assert f"| {rule} | {added} |" in appendix
    ratios = [expected_of_got(n, mu) for n in ("cartpole-n5", "cartpole-n10") for mu in (0, 1.5)]
    five, ten = "{:.1f} times what they get with μ = 0, and {:.1f} times with", "{:.1f} and {:.1f}"
    assert five.format(*ratios[:2]) in page
    assert f"With N=10 it is {ten.format(*ratios[2:])} times." in page


def expected_of_got(task: str, mu: float) -> float:
    arm = f"rule=median-mad,pessimism={mu}"
    found = [row for row in SEARCH if (row.task, row.arm) == (task, arm)]
    return sum(row.expected for row in found) / sum(row.discounted for row in found)


def test_what_is_told_of_lunarlander() -> None:
    page, task, papers = words("plus.md"), "lunarlander-n5", PAPERS_ON_LUNARLANDER
    means = [second_half(task, arm, BASELINES) for arm in (PLUS, papers, INDEPENDENT)]
    assert (
        "**LunarLander N=5**, 25 seeds: {} for `-plus`, {} for the paper's server and {} for "
        "agents alone.".format(*means)
        in page
    )
    of_alone, of_plus = (
        told_of_gain(task, papers, other, BASELINES) for other in (INDEPENDENT, PLUS)
    )
    assert (
        f"The paper's server is above alone by {of_alone}, and above `-plus` by {of_plus}." in page
    )
    changed, unchanged = (rounds_change(task, arm, BASELINES) for arm in (PLUS, papers))
    assert f"its agents by {changed}, a round of the paper's server by {unchanged}." in page
    below = told_of_gain(task, INDEPENDENT, PLUS, BASELINES)
    assert f"`-plus` are below agents alone by {below} over" in words("limitations.md")


def rounds_change(task: str, arm: str, rows: list[Row]) -> str:
    return str(Estimate.of(changes_by_a_round(task, arm, rows)))


def test_baselines_of_lunarlander_are_the_archives() -> None:
    run = load_run(DOCS / "reproduction" / "lander-20" / "lunarlander-n5")
    arms = {INDEPENDENT: run.arms[INDEPENDENT], PAPERS_ON_LUNARLANDER: run.arms["fedhql"]}
    for arm, curves_S in arms.items():
        rows = {row.seed: row for row in BASELINES if row[:2] == ("lunarlander-n5", arm)}
        assert rows.keys() == curves_S.keys()
        for seed, curve in curves_S.items():
            kept = rows[seed].max_mean, rows[seed].second_half
            there = curve.max_mean().mean(), curve.second_half_mean().mean()
            assert kept == pytest.approx(there, abs=0.01)


def test_choices_are_compared_at_equal_consumption() -> None:
    for rows in (SEARCH, TEN_SEEDS, WIDE_ROUNDS, BASELINES):
        for task in TASKS:
            assert len({row.env_steps for row in rows if row.task == task}) <= 1


def test_what_is_told_of_wide_rounds() -> None:
    page, appendix, task = words("plus.md"), words("plus/search.md"), "lunarlander-n5"
    papers = PAPERS_ON_LUNARLANDER
    wide = f"rule=median-mad,pessimism=1,{WIDE},self_learning_env_steps=10000"
    means = [second_half(task, arm, WIDE_ROUNDS) for arm in (wide, papers, INDEPENDENT)]
    assert "has {}, the paper's server {} and agents alone {}.".format(*means) in page
    of_alone, of_papers = (
        told_of_gain(task, wide, other, WIDE_ROUNDS) for other in (INDEPENDENT, papers)
    )
    assert f"above alone by {of_alone} and not shown to differ" in appendix
    assert f"from the paper's server, {of_papers}." in appendix
    consensus = {
        (row.arm, row.seed): row.second_half_consensus for row in WIDE_ROUNDS if row.task == task
    }
    more = [consensus[wide, seed] - consensus[papers, seed] for seed in range(100, 108)]
    assert f"Nor is their consensus: {Estimate.of(np.array(more))}." in appendix
    changed, unchanged = (rounds_change(task, arm, WIDE_ROUNDS) for arm in (wide, papers))
    assert f"A round still changes their return, by {changed}." in appendix
    assert f"With the paper's server it changes by {unchanged}." in appendix

    task, narrow = "cartpole-n10", "query_batch=128,self_learning_env_steps=5000"
    wide = f"rule=median-mad,pessimism=1.5,{WIDE},self_learning_env_steps=5000"
    added = told_of_gain(task, wide, f"rule=median-mad,pessimism=1.5,{narrow}", WIDE_ROUNDS)
    assert f"512 states add {added} to `median-mad` with μ = 1.5." in appendix
    anew = [
        second_half(task, f"rule=median-mad,pessimism={mu},{narrow}{reset}", WIDE_ROUNDS)
        for reset in (",server_environments=reset", "")
        for mu in (1, 1.5)
    ]
    assert "{} with μ = 1 and {} with μ = 1.5, instead of {} and {}.".format(*anew) in appendix


def test_what_is_told_of_the_papers_server() -> None:
    there = curves_until(load_run(DOCS / "reproduction/h200/cartpole-n10"), "fedhql", 400_000)
    second_halves = [curve.second_half_mean().mean() for curve in there.values()]
    assert (
        f"The paper's server has {Estimate.of(np.array(second_halves))} after rounds, with "
        f"{len(there)} other seeds." in words("plus.md")
    )


def test_the_seed_that_expects_too_much() -> None:
    found = {row.seed: row.expected for row in BASELINES if row[:2] == ("cartpole-n5", INDEPENDENT)}
    most = max(found, key=lambda seed: found[seed])
    assert (
        f"expect {np.mean([*found.values()]):,.0f} in the table because of seed {most}, which has "
        f"{found[most] / 1e6:.1f} million." in words("plus.md")
    )


def test_what_is_told_of_a_limit_on_targets() -> None:
    page, one = words("plus/search.md"), PESSIMISTIC
    limited = {(row.task, row.seed): row[3:] for row in SEARCH if row.arm == f"{one},{LIMIT}"}
    assert len(limited) == 15
    assert limited == {(row.task, row.seed): row[3:] for row in SEARCH if row.arm == one}
    added = [
        told_of_gain("cartpole-n5", f"{arm},{LIMIT}", arm, FIRST_STAGE)
        for arm in (one, PLUS, "rule=mean-std,pessimism=0")
    ]
    assert (
        f"it added {added[0]} with μ = 1. With μ = 0 it added {added[1]} (`bellman-weighted`) and "
        f"{added[2]} (`mean-std`)." in page
    )


def test_what_is_told_of_ten_seeds() -> None:
    page = words("plus/search.md")
    median, bellman = "rule=median-mad,pessimism=1.5", "rule=bellman-weighted,pessimism=1"

    def gain(arm: str, other: str) -> str:
        return told_of_gain("cartpole-n5", arm, other, TEN_SEEDS)

    assert f"above the paper's server by {gain(median, PAPERS)}, and `-plus` by" in page
    assert f"and `-plus` by {gain(PLUS, PAPERS)}." in page
    chosen_by = [row for row in TEN_SEEDS if row.seed < 105]
    others = [row for row in TEN_SEEDS if row.seed >= 105]
    alone = told_of_gain("cartpole-n5", median, PLUS, others)
    assert f"With them alone, `median-mad` with μ = 1.5 is above `-plus` by {alone}." in page
    had, has = (second_half("cartpole-n5", bellman, rows) for rows in (SEARCH, chosen_by))
    assert f"had {had} above with seeds 100 to 104, and has {has} with the same seeds" in page
    assert f"With ten seeds `median-mad` is above it by {gain(median, bellman)}." in page
    anew = [gain(f"{arm},server_environments=reset", arm) for arm in (median, bellman)]
    assert f"add {anew[0]} to `median-mad` and {anew[1]} to `bellman-weighted`." in page


def test_what_is_told_of_broadcasts_once_a_round() -> None:
    page = words("plus/search.md")
    added, changed = [], []
    for task, mu in (("cartpole-n5", 1.5), ("lunarlander-n5", 1)):
        once, every_step = (
            f"rule=median-mad,{every}pessimism={mu}" for every in ("broadcast_every=round,", "")
        )
        added.append(told_of_gain(task, once, every_step, BROADCAST))
        changed.append([change_by_a_round(task, arm) for arm in (once, every_step)])
    assert f"it adds {added[0]} on CartPole and {added[1]} on LunarLander." in page
    cartpole, lander = ("{:.0f}, instead of {:.0f}.".format(*of_task) for of_task in changed)
    assert f"On LunarLander a round then changes the mean return by {lander}" in page
    assert f"On CartPole it changes it by {cartpole}" in page
    here, there = (
        np.mean([row.second_half for row in rows if (row.task, row.arm) == IN_BOTH_SEARCHES])
        for rows in (BROADCAST, SEARCH)
    )
    assert f"is {here:.0f} here and {there:.0f} in the search on the GPU" in page


def test_what_is_told_of_larger_rounds() -> None:
    page, anew = words("plus/search.md"), ",server_environments=reset"
    small = "rule=median-mad,pessimism=1"
    large = f"{small},query_batch=128,self_learning_env_steps=10000{anew}"
    changed = [change_by_a_round("lunarlander-n5", arm, LARGE_ROUNDS) for arm in (large, small)]
    assert (
        "changes the mean return by {:.0f} with the paper's K and B and new episodes, instead of "
        "{:.0f}.".format(*changed)
        in page
    )
    small = "rule=median-mad,pessimism=1.5"
    large = f"{small},query_batch=128,self_learning_env_steps=5000"
    more, begun = (
        told_of_gain("cartpole-n5", *arms, LARGE_ROUNDS)
        for arms in ((large, small), (large + anew, large))
    )
    assert f"with the paper's K and B `median-mad` has {more} more than without." in page
    assert f"Episodes that begin anew add {begun} to that." in page


def change_by_a_round(task: str, arm: str, rows: list[Row] = BROADCAST) -> float:
    return float(changes_by_a_round(task, arm, rows).mean())


def changes_by_a_round(task: str, arm: str, rows: list[Row]) -> NDArray[np.float64]:
    """Return how the second half differs after rounds, seed by seed."""
    of_arm = [row for row in rows if (row.task, row.arm) == (task, arm)]
    return np.array([row.second_half_after_rounds - row.second_half for row in of_arm])


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

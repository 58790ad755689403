"""What docs say of random actions that fall, in full, and of sceptics, from the committed runs."""

import csv
from typing import NamedTuple

import numpy as np

from benchmarks.plus_search import INDEPENDENT, TASKS, Row, compare, gains, read, score
from fedhql.results.objectives import Estimate
from tests.results.test_plus import BASELINES, CHOSEN, DOCS, words
from tests.results.test_plus_candidates import AT_20, LARGE

SEARCHED, LAST = (read(DOCS / "plus" / f"{name}-falling.csv") for name in ("search", "last"))
FELL = "random_actions=0.3 to 0,replay_capacity=200000"
CARTPOLE_BUDGET = 2_000_000


class Reached(NamedTuple):
    """When an agent first had 500."""

    task: str
    arm: str
    seed: int
    agent: str
    best_by_100000: float
    env_steps_to_500: float


def reached(task: str, arm: str) -> list[Reached]:
    with (DOCS / "plus" / "reached-falling.csv").open(newline="") as file:
        rows = [
            Reached(task, arm, int(seed), agent, float(best), float(steps or "inf"))
            for task, arm, seed, agent, best, steps in list(csv.reader(file))[1:]
        ]
    return [row for row in rows if (row.task, row.arm) == (task, arm)]


def more(
    task: str, rows: list[Row], column: str = "second_half", arm: str = FELL, other: str = "fedhql"
) -> Estimate:
    return Estimate.of(gains(rows, task, arm, other, column))


def test_tables_of_the_full_runs_are_of_their_data() -> None:
    for rows in (SEARCHED, LAST):
        assert f"\n\n{compare(rows)}\n\n" in (DOCS / "plus" / "search.md").read_text()
        for task in TASKS:
            assert len({row.env_steps for row in rows if row.task == task}) == 1


def test_the_second_rule_keeps_plus() -> None:
    adds = [more(task, SEARCHED) for task in TASKS]
    assert all(of.low < 0 < of.high for of in adds)
    worst = [
        min(score([row for row in SEARCHED if (row.task, row.arm) == (t, arm)]) for t in TASKS)
        for arm in (FELL, "fedhql")
    ]
    assert (
        "adds {} on CartPole N=5, {} on N=10 and {} on LunarLander. By the first rule it would "
        "replace `-plus`: its worst task scores {:.3f}, that of `-plus` {:.3f}.".format(
            *adds, *worst
        )
        in words("plus/search.md")
    )
    assert worst[0] > worst[1]
    before = Estimate.of(gains(AT_20, "cartpole-n5", LARGE, "fedhql"))
    assert f"It added {before} on CartPole N=5" in words("plus/search.md")


def test_when_every_agent_has_reached_500() -> None:
    five, ten = (reached(f"cartpole-n{n}", FELL) for n in (5, 10))
    last = [max(row.env_steps_to_500 for row in rows) for rows in (five, ten)]
    seeds = [len({row.seed for row in rows}) for rows in (five, ten)]
    plus = [
        np.mean([row.best_by_100000 == 500 for row in reached(f"cartpole-n{n}", "fedhql")])
        for n in (5, 10)
    ]
    told = (
        f"once in every seed by {last[0]:,.0f} env steps with N=5 ({seeds[0]} seeds) and by "
        f"{last[1]:,.0f} with N=10 ({seeds[1]} seeds). That is {last[0] / CARTPOLE_BUDGET:.1%} and "
        f"{last[1] / CARTPOLE_BUDGET:.1%} of the budget. In the same runs `-plus` has "
        f"{plus[0]:.0%} of agents and seeds at 500 by 5% with N=5, and {plus[1]:.0%} with N=10."
    )
    assert told.replace("%", " %") in words("plus/search.md")


def test_what_is_told_of_the_last_seeds() -> None:
    ten, lander = "cartpole-n10", "lunarlander-n5"
    assert {row.seed for row in LAST if row.task != "cartpole-n5"} == {*range(40, 50)}
    less = Estimate.of(-gains(LAST, ten, FELL, "fedhql", "second_half_consensus"))
    told = (
        f"it adds {more(ten, LAST)} on CartPole N=10 and {more(lander, LAST)} on LunarLander. On "
        f"LunarLander it adds {more(lander, LAST, 'second_half_after_rounds')} after rounds. On "
        f"N=10 its consensus policy has {less} less."
    )
    assert told in words("plus/search.md")
    five = "cartpole-n5"
    ours = [row for row in LAST if row.task == five]
    seeds = {row.seed for row in ours}
    assert seeds == {*range(5, 15), *range(40, 50)}
    papers = next(row.arm for row in BASELINES if row.task == five and "mean-std" in row.arm)
    of_others = [more(five, [*ours, *BASELINES], other=o) for o in (INDEPENDENT, papers, CHOSEN)]
    assert "{} above alone, {} above the paper's server, and {} above `-plus`.".format(
        *of_others
    ) in words("plus/search.md")

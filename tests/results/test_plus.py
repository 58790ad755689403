"""docs/plus.md says what the committed curves say, and robustness.md what attacks.csv says."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.plus_search import (
    PLUS,
    RULES,
    TASKS,
    Row,
    compare,
    gains,
    rank,
    read,
    score,
)
from fedhql.results.curves import Curve
from fedhql.results.load import load_run
from fedhql.results.objectives import Estimate, curves_until
from fedhql.storage.arm_names import INDEPENDENT, label

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
    _, recent = figures(home, env_steps, seeds)
    best = Estimate.of([curve.max_mean().mean() for curve in curves(home, env_steps, seeds)])
    return f"{best} ({recent:.0f})"


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
    _, theirs, as_presets, ours, again = row_of("plus/agents.md", f"| {task}")
    assert said(paper, env_steps) in theirs
    assert said(paper.replace("earlier", "h200"), env_steps) == as_presets
    assert said(plus, env_steps) in ours
    if "N=10" not in task:
        assert said(plus, env_steps, SECOND) in again
        assert len(curves(plus, env_steps, SECOND)) == 5
    assert len(curves(plus, env_steps, FIRST)) == 5


def test_the_gain_over_the_same_agents_alone() -> None:
    """Their other options act in improvements only."""
    told = []
    for home, env_steps in (
        (CARTPOLE_5, 400_000),
        (CARTPOLE_5, 2_000_000),
        (CARTPOLE_10, 400_000),
        (LUNARLANDER_5, 800_000),
    ):
        run, plus = load_run(DOCS / home), load_run(DOCS / f"plus/{Path(home).name}-plus-agents")
        alone, ours = (
            curves_until(of, arm, env_steps) for of, arm in ((run, INDEPENDENT), (plus, "fedhql"))
        )
        for one, other in zip(run.settings["agents"], plus.settings["agents"], strict=True):
            different = {key for key in one | other if one.get(key) != other.get(key)}
            assert all(key.startswith("improvement_") for key in different)
        gained = [
            (ours[s].second_half_mean() - of.second_half_mean()).mean() for s, of in alone.items()
        ]
        told.append(Estimate.of(gained))
    page = " ".join((DOCS / "plus" / "agents.md").read_text().split())
    assert (
        "N=5: {} at 20 % of the budget, {} over the whole budget (5 seeds);".format(*told) in page
    )
    assert f"N=10: {told[2]} at 20 % (5 seeds);" in page
    assert f"N=5: {told[3]} at 20 % (3 seeds," in page


def test_what_rarer_evaluations_of_lunarlander_have() -> None:
    home = "plus/lunarlander-n5-plus-agents"
    found = [
        np.mean([of.returns_NE[:, 3::4].max(axis=1) for of in curves(home, 800_000, seeds)])
        for seeds in (FIRST, SECOND)
    ]
    *_, ours, again = row_of("plus/agents.md", "| LunarLander N=5, 20 %")
    assert ours.endswith(f"; every fourth evaluation alone: {found[0]:.0f}")
    assert again.endswith(f"; {found[1]:.0f}")


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


SEARCH, FIRST_STAGE, BROADCAST, TEN_SEEDS, LARGE_ROUNDS, WIDE_ROUNDS, REPLAY, MEMORY = (
    read(DOCS / "plus" / f"search{name}.csv")
    for name in ("", "-first", "-broadcast", "-reset", "-rounds", "-wide", "-replay", "-memory")
)
BASELINES = read(DOCS / "plus" / "baselines.csv")
LONG = read(DOCS / "plus" / "long.csv")
CHOSEN = "rule=median-mad,pessimism=1,replay_batch=96"  # the second server
REMEMBERING = "random_actions=0.3 to 0,replay_capacity=200000"
SCEPTICAL_SERVER = f"rule=sceptical,pessimism=1,replay_batch=96,{REMEMBERING}"  # CartPole's
RECALLING_SERVER = f"rule=median-mad,pessimism=0,replay_batch=992,{REMEMBERING}"  # LunarLander's
SERVERS = {
    "cartpole-n5": SCEPTICAL_SERVER,
    "cartpole-n10": SCEPTICAL_SERVER,
    "lunarlander-n5": RECALLING_SERVER,
}
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
    searches = SEARCH, BROADCAST, TEN_SEEDS, LARGE_ROUNDS, WIDE_ROUNDS, REPLAY, MEMORY
    for table in (rank(SEARCH), rank(FIRST_STAGE), *map(compare, searches)):
        assert f"\n\n{table}\n\n" in appendix
    assert f"\n\n{compare(BASELINES)}\n\n" in (DOCS / "plus.md").read_text()


def test_what_is_told_of_pessimism() -> None:
    page, appendix = words("plus.md"), words("plus/search.md")
    for rule in RULES:
        zero, one = (f"rule={rule},pessimism={mu}" for mu in (0, 1))
        added = " | ".join(told_of_gain(task, one, zero) for task in TASKS)
        assert f"| {rule} | {added} |" in appendix
    zero, one = (f"rule=median-mad,pessimism={mu}" for mu in (0, 1))
    added_in_replay = told_of_gain(
        "cartpole-n5",
        in_large_rounds(f"{one},replay_batch=384", 5_000),
        in_large_rounds(f"{zero},replay_batch=384", 5_000),
        REPLAY,
    )
    assert f"There μ = 1 adds {added_in_replay} to μ = 0." in appendix
    servers = (PLUS, CHOSEN, SCEPTICAL_SERVER)
    of_five = [expected_of_got("cartpole-n5", arm, BASELINES) for arm in servers]
    of_ten = [expected_of_got("cartpole-n10", arm, BASELINES) for arm in servers[1:]]
    assert (
        "agents expect {:.1f} times what they get with the first `-plus`, {:.1f} times with the "
        "second and {:.1f} times with today's. With N=10 it is {:.1f} times with the second and "
        "{:.1f} times with today's.".format(*of_five, *of_ten)
        in page
    )


def in_large_rounds(arm: str, K: int) -> str:
    return f"{arm},query_batch=128,self_learning_env_steps={K}"


def expected_of_got(task: str, arm: str, rows: list[Row] = SEARCH) -> float:
    found = [row for row in rows if (row.task, row.arm) == (task, arm)]
    return sum(row.expected for row in found) / sum(row.discounted for row in found)


PAPERS_BY_TASK = {
    "cartpole-n5": PAPERS,
    "cartpole-n10": PAPERS,
    "lunarlander-n5": PAPERS_ON_LUNARLANDER,
}


def test_the_search_chose_the_second_server() -> None:
    assert rank(SEARCH).splitlines()[2].startswith(f"| {label(CHOSEN)} |")


def test_what_is_told_of_the_servers() -> None:
    page = words("plus.md")
    for name, (task, papers) in zip(
        ("CartPole N=5", "CartPole N=10", "LunarLander N=5"), PAPERS_BY_TASK.items(), strict=True
    ):
        ours = SERVERS[task]
        means = [second_half(task, arm, BASELINES) for arm in (ours, papers, INDEPENDENT)]
        gain = told_of_gain(task, ours, papers, BASELINES)
        told = (
            "**{}**: {} for `-plus`, {} for the paper's server and {} for agents alone. The gain "
            "over the paper's server is {}".format(name, *means, gain)
        )
        columns = ("second_half_after_rounds", "second_half_consensus")
        told += ". After rounds it is {:.0f}, and for the consensus policy {:.0f}.".format(
            *(mean_of(task, ours, column, BASELINES) for column in columns)
        )
        assert told in page
        if task != "cartpole-n10":
            told = "have {}, with the paper's server {}, and alone {}".format(*means)
            assert told in words("../README.md")
        for arm in (ours, CHOSEN, papers, INDEPENDENT):
            seeds = {row.seed for row in BASELINES if (row.task, row.arm) == (task, arm)}
            assert seeds == {*range(15), *range(40, 50)}
    kept = [row for row in BASELINES if row.seed >= 40]
    gains_kept = [
        told_of_gain(task, SERVERS[task], arm, kept) for task, arm in PAPERS_BY_TASK.items()
    ]
    assert (
        "With these seeds alone, the gains over the paper's server are {}, {} and {}.".format(
            *gains_kept
        )
        in page
    )
    unseen = [row for row in BASELINES if row.seed >= 46]
    five = "cartpole-n5"
    last = told_of_gain(five, SERVERS[five], PAPERS_BY_TASK[five], unseen)
    assert f"With seeds 46 to 49 alone, CartPole N=5 gains {last}." in page
    names = ("second_half", "second_half_after_rounds", "second_half_consensus")
    long = [mean_of("cartpole-n5", CHOSEN, name, LONG) for name in names]
    (env_steps,) = {row.env_steps for row in LONG}
    assert (
        "reached {:,} env steps, {:.0f} %. `docs/plus/long.csv` has that row by row. There the "
        "second half is lower: {:.0f} after self-learning, {:.0f} after rounds and {:.0f} for the "
        "consensus policy.".format(env_steps, env_steps / 20_000, *long)
        in words("plus/search.md")
    )


def mean_of(task: str, arm: str, name: str, rows: list[Row]) -> float:
    return float(np.mean([getattr(r, name) for r in rows if (r.task, r.arm) == (task, arm)]))


def test_when_agents_have_500() -> None:
    with (DOCS / "plus" / "reached.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 125
    last = max(float(row["env_steps_to_500"]) for row in rows) / 2e6
    by_agent: dict[str, list[float]] = {}
    for row in rows:
        by_agent.setdefault(row["agent"], []).append(float(row["best_by_100000"]))
    means = sorted(np.mean(of_agent) for of_agent in by_agent.values())
    page = words("plus/search.md")
    assert f"500 once in every seed by {100 * last:.1f} % of the budget;" in page
    assert f"by 5 % the means of the best over seeds are {means[0]:.0f} to {means[-1]:.0f}." in page


def test_what_is_told_of_replay() -> None:
    page, plain = words("plus/search.md"), "rule=median-mad,pessimism=1"
    without, with_replay = (
        in_large_rounds(arm, 10_000) for arm in (plain, f"{plain},replay_batch=384")
    )
    changes = [rounds_change("lunarlander-n5", arm, REPLAY) for arm in (without, with_replay)]
    assert "by {} without replay, and by {} with 384 transitions.".format(*changes) in page
    added, after = [], []
    for task, K in (("cartpole-n5", 5_000), ("lunarlander-n5", 10_000)):
        without, with_replay = (
            in_large_rounds(arm, K) for arm in (plain, f"{plain},replay_batch=384")
        )
        added.append(told_of_gain(task, with_replay, without, REPLAY))
        of = {(r.arm, r.seed): r.second_half_after_rounds for r in REPLAY if r.task == task}
        more_S = [of[with_replay, seed] - of[without, seed] for seed in range(100, 106)]
        after.append(str(Estimate.of(np.array(more_S))))
    assert (
        f"the same 384 transitions add {added[0]} after self-learning and {after[0]} after rounds."
        in page
    )
    more = told_of_gain("lunarlander-n5", f"{plain},replay_batch=480", CHOSEN, REPLAY)
    assert f"480 transitions have {more} more than 96." in page
    at_20 = [told_of_gain(task, CHOSEN, plain) for task in TASKS]
    assert (
        "96 transitions add {} to `median-mad` with μ = 1 on CartPole N=5, {} on N=10 and {} on "
        "LunarLander.".format(*at_20)
        in page
    )


def test_what_is_told_of_a_larger_memory() -> None:
    appendix, lander = words("plus/search.md"), "lunarlander-n5"

    def arm(task: str, changed: str = "") -> str:
        """Return 384 transitions a step in the paper's rounds, with one more choice."""
        plain = {"rule": "median-mad", "learning_rate": "", "pessimism": "1", "replay_batch": "384"}
        named = plain | dict(pair.split("=") for pair in changed.split(",") if pair)
        given = ",".join(f"{name}={value}" for name, value in named.items() if value)
        return in_large_rounds(given, 10_000 if task == lander else 5_000)

    def of_tasks(changed: str, other: str | None) -> list[str]:
        found = []
        for task in TASKS:
            before = CHOSEN if other is None else arm(task, other)
            found.append(told_of_gain(task, arm(task, changed), before, MEMORY))
        return found

    large = "replay_capacity=200000"
    added = "{} on CartPole N=5, {} on N=10 and {} on LunarLander after".format(
        *of_tasks(large, "")
    )
    assert f"50,000** add {added} self-learning." in appendix
    changes = [rounds_change(lander, arm(lander, each), MEMORY) for each in (large, "")]
    assert "changes the mean return by {}, instead of {}, but".format(*changes) in appendix
    pair = arm(lander), arm(lander, large)
    less = str(Estimate.of(gains(MEMORY, lander, *pair, "second_half_consensus")))
    assert f"consensus policy after self-learning has {less} less" in appendix
    of_plus = of_tasks(large, None)
    told = "have {} more on CartPole N=5, {} on N=10 and {} on LunarLander.".format(*of_plus)
    assert f"Compared with `-plus`, 200,000 transitions {told}" in appendix
    assert all("[-" in each for each in of_plus[1:])
    slower = [of_tasks(f"{large},learning_rate={rate}", large) for rate in (0.3, 0.1, 0.05)]
    assert all(each.startswith("-") for of_rate in slower for each in of_rate)
    assert (
        "α_s = 0.3 adds {}, {} and {}, and α_s = 0.05 adds {}, {} and {}.".format(
            *slower[0], *slower[2]
        )
        in appendix
    )
    milder = of_tasks(f"{large},learning_rate=0.1,pessimism=0.5", f"{large},learning_rate=0.1")
    assert "μ = 0.5 instead of 1 adds {}, {} and {}.".format(*milder) in appendix
    worst = [
        min(score([r for r in MEMORY if (r.task, r.arm) == pair]) for pair in choice.items())
        for choice in ({task: arm(task, large) for task in TASKS}, dict.fromkeys(TASKS, CHOSEN))
    ]
    assert "transitions score {:.3f} there and `-plus` {:.3f},".format(*worst) in appendix
    assert worst[0] < worst[1]


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
    for rows in (SEARCH, TEN_SEEDS, WIDE_ROUNDS, REPLAY, MEMORY, BASELINES):
        for task in TASKS:
            assert len({row.env_steps for row in rows if row.task == task}) <= 1


def test_what_is_told_of_wide_rounds() -> None:
    appendix, task = words("plus/search.md"), "lunarlander-n5"
    papers = PAPERS_ON_LUNARLANDER
    wide = f"rule=median-mad,pessimism=1,{WIDE},self_learning_env_steps=10000"
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

    assert f"above the paper's server by {gain(median, PAPERS)}, and the first `-plus` by" in page
    assert f"and the first `-plus` by {gain(PLUS, PAPERS)}." in page
    chosen_by = [row for row in TEN_SEEDS if row.seed < 105]
    others = [row for row in TEN_SEEDS if row.seed >= 105]
    alone = told_of_gain("cartpole-n5", median, PLUS, others)
    assert (
        f"With them alone, `median-mad` with μ = 1.5 is above the first `-plus` by {alone}." in page
    )
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

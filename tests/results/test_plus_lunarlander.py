"""What docs/plus.md says of LunarLander, and of choices that are left out, from committed runs."""

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.plus_search import compare, read, rows_in
from fedhql.results.curves import Arms
from fedhql.results.load import load_run
from fedhql.results.objectives import Estimate, curves_until
from fedhql.settings.experiment import read_settings
from fedhql.settings.presets import preset_text
from fedhql.storage.arm_names import FEDHQL, INDEPENDENT
from fedhql.storage.run_directory import Cell
from tests.results.test_plus import (
    BASELINES,
    DOCS,
    PAPERS_BY_TASK,
    RECALLING_SERVER,
    SERVERS,
    mean_of,
    second_half,
    told_of_gain,
    words,
)
from tests.results.test_plus_candidates import (
    SECOND_HALVES,
    all_have_500,
    halves,
    left_out,
    until,
)
from tests.results.test_plus_sceptics import shown

HOME = DOCS / "plus" / "recalled-full"
FIVE, TEN = (load_run(HOME / f"lunarlander-n{n}") for n in (5, 10))
ROWS = rows_in(HOME)
SEARCHED, REPORTED = [*range(100, 106)], [*range(15), *range(40, 50)]
PAPER = load_run(DOCS / "reproduction" / "lander-20" / "lunarlander-n5")
PAPER_OF_TEN = load_run(DOCS / "reproduction" / "h200" / "lunarlander-n10").until(800_000)


def of_seeds(arms: Arms, arm: str, what: str, seeds: list[int]) -> NDArray[np.float64]:
    """Return a method of the curves, as a mean over agents for each seed."""
    return np.array([getattr(arms[arm][seed], what)().mean() for seed in seeds])


def test_the_fourth_rule_chose_the_preset() -> None:
    second = {
        row.seed: row
        for row in read(DOCS / "plus" / "search-falling.csv")
        if (row.task, row.arm) == ("lunarlander-n5", FEDHQL)
    }
    ours = {row.seed: row for row in ROWS if row.task == "lunarlander-n5"}
    adds = [
        Estimate.of([getattr(ours[s], name) - getattr(second[s], name) for s in SEARCHED])
        for name in SECOND_HALVES
    ]
    assert {(ours[s].env_steps, second[s].env_steps) for s in SEARCHED} == {(800_000, 800_000)}
    assert adds[0].low > 0
    assert all(more.high > 0 for more in adds[1:])
    told = "adds {} to `-plus` after self-learning, {} after rounds and {} to the consensus policy."
    assert told.format(*adds) in words("plus/search.md")
    unseen = [
        Estimate.of([getattr(ours[s], name) - getattr(second[s], name) for s in SEARCHED[3:]])
        for name in SECOND_HALVES
    ]
    assert "With 103 to 105 alone it adds {}, {} and {}.".format(*unseen) in words("plus/search.md")
    for task, run in (("lunarlander-n5", FIVE), ("lunarlander-n10", TEN)):
        ran = run.settings["federation"]
        preset = read_settings(preset_text(f"{task}-plus")).federation.model_dump()
        assert {name: preset[name] for name in ran} == ran


def test_the_tables_are_of_the_runs() -> None:
    assert f"\n\n{compare(ROWS)}\n\n" in (DOCS / "plus" / "search.md").read_text()
    kept = {(row.task, row.seed): row for row in BASELINES if row.arm == RECALLING_SERVER}
    alone = {row.seed: row for row in BASELINES if row[:2] == ("lunarlander-n10", INDEPENDENT)}
    assert sorted(seed for task, seed in kept if task == "lunarlander-n5") == REPORTED
    assert sorted(alone) == [*range(10)]
    for row in ROWS:
        if row.seed < 100:
            there = alone[row.seed] if row.arm == INDEPENDENT else kept[row.task, row.seed]
            assert row[3:] == pytest.approx(there[3:], rel=1e-4, nan_ok=True)


def test_the_first_table() -> None:
    lines = [
        "| experiment | agents, `-plus` | consensus policy, `-plus` | agents, the paper's server "
        "| agents alone | seeds |",
        "|---|" + "---:|" * 5,
    ]
    for task, server in (SERVERS | {"lunarlander-n10": RECALLING_SERVER}).items():
        name = task.replace("cartpole-n", "CartPole N=").replace("lunarlander-n", "LunarLander N=")
        papers = PAPERS_BY_TASK.get(task)
        cells = [
            second_half(task, server, BASELINES),
            f"{mean_of(task, server, 'second_half_consensus', BASELINES):.0f}",
            second_half(task, papers, BASELINES) if papers else "-",
            second_half(task, INDEPENDENT, BASELINES),
            str(len({row.seed for row in BASELINES if (row.task, row.arm) == (task, server)})),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    assert "\n\n{}\n\n".format("\n".join(lines)) in (DOCS / "plus.md").read_text()


def test_what_is_told_of_five_agents() -> None:
    page, arms = words("plus.md"), FIVE.arms
    best, recent = (of_seeds(arms, FEDHQL, what, REPORTED) for what in ("max_mean", "recent_mean"))
    assert len(FIVE.arms[FEDHQL][0].consumed_E) == len(PAPER.arms[FEDHQL][0].consumed_E) == 80
    of_paper, of_alone = (
        of_seeds(PAPER.arms, arm, "max_mean", REPORTED).mean() for arm in (FEDHQL, INDEPENDENT)
    )
    more = recent - of_seeds(PAPER.arms, FEDHQL, "recent_mean", REPORTED)
    *others, fourth, fifth = np.mean([arms[FEDHQL][s].recent_mean() for s in REPORTED], axis=0)
    gained = told_of_gain("lunarlander-n5", RECALLING_SERVER, INDEPENDENT, BASELINES)
    assert (
        f"The gain over agents alone is {gained}. The max mean return is {Estimate.of(best)} in "
        f"the mean over agents. With the paper's server it is {of_paper:.0f}, and alone "
        f"{of_alone:.0f}. The mean of the last tenth is {Estimate.of(recent)}, {Estimate.of(more)} "
        f"more than with the paper's server. Agent4 and Agent5 have {fourth:.0f} and {fifth:.0f} "
        f"there, the others {min(others):.0f} to {max(others):.0f}. In the last tenth the mean "
        f"over agents is {np.floor(recent.min()):.0f} or more in every seed." in page
    )
    told = f"Agent4 and Agent5 have {fourth:.0f} and {fifth:.0f} in the last tenth, the others"
    assert f"{told} {min(others):.0f} to {max(others):.0f} (25 seeds)." in words("limitations.md")
    older = curves_until(load_run(DOCS / "plus" / "lunarlander-n5-plus-agents"), FEDHQL, 800_000)
    above = [
        arms[FEDHQL][s].second_half_mean().mean() - older[s].second_half_mean().mean()
        for s in range(10)
    ]
    assert f"`lunarlander-n5-plus-agents` is {Estimate.of(above)} (10 seeds," in page
    expected, got = (
        np.mean([getattr(FIVE.measures[Cell(FEDHQL, s)], name).mean() for s in REPORTED])
        for name in ("start_values_N", "discounted_N")
    )
    told = f"{expected:.0f} at the start of an episode, where they get {got:.0f} (N=5,"
    assert told in page


def test_what_is_told_of_ten_agents() -> None:
    page, seeds = words("plus.md"), [*range(10)]
    told = []
    for what in ("second_half_mean", "max_mean", "recent_mean"):
        ours, alone = (of_seeds(TEN.arms, arm, what, seeds) for arm in (FEDHQL, INDEPENDENT))
        told += [f"{ours.mean():.0f}", f"{alone.mean():.0f}", str(Estimate.of(ours - alone))]
    assert (
        "{} for `-plus` and {} for agents alone, a gain of {}. The max mean return is {} instead "
        "of {}, a gain of {}. The mean of the last tenth is {} instead of {}, a gain of {}."
        "".format(*told)
        in page
    )
    first, after, papers = [*range(5)], TEN.after_rounds, PAPER_OF_TEN.after_rounds
    assert (after[FEDHQL][0].consumed_E == papers[FEDHQL][0].consumed_E).all()
    half, best, recent = (
        Estimate.of(of_seeds(after, FEDHQL, what, first) - of_seeds(papers, FEDHQL, what, first))
        for what in ("second_half_mean", "max_mean", "recent_mean")
    )
    assert (
        f"After rounds `-plus` has {half} more over the second half, {best} more at the best, and "
        f"{recent} more in the last tenth." in page
    )
    consensus = of_seeds(TEN.consensus, FEDHQL, "second_half_mean", seeds).mean()
    ours_SN, alone_SN = (
        np.array([TEN.arms[arm][seed].second_half_mean() for seed in seeds])
        for arm in (FEDHQL, INDEPENDENT)
    )
    gained_SN = ours_SN - alone_SN
    assert gained_SN[:, 1].mean() / 10 > gained_SN.mean() / 2
    others = Estimate.of(np.delete(gained_SN, 1, axis=1).mean(axis=1))
    assert (
        f"The consensus policy has {consensus:.0f}. More than half of the gain in the second half "
        f"is Agent2's, which has {alone_SN[:, 1].mean():.0f} alone. The other nine gain {others}."
        in page
    )
    theirs, ours_after = (
        of_seeds(of, FEDHQL, "second_half_mean", of_first).mean()
        for of, of_first in ((papers, first), (after, seeds))
    )
    assert f"where it has {theirs:.0f} (5 seeds), and `-plus` {ours_after:.0f}." in page
    for of in (TEN.arms, after):
        assert of_seeds(of, FEDHQL, "recent_mean", seeds).mean() < 0
    last_N = np.mean([TEN.arms[FEDHQL][seed].recent_mean() for seed in seeds], axis=0)
    low, high = np.sort(last_N)[:4], np.sort(last_N)[4:]
    assert sorted(np.argsort(last_N)[:4] + 1) == [2, 5, 9, 10]
    assert (
        f"Agent2, Agent5, Agent9 and Agent10 have {low[-1]:.0f} to {low[0]:.0f} after "
        f"self-learning, the others {high[0]:.0f} to {high[-1]:.0f}. The consensus policy is above "
        "0 in every seed." in page
    )
    assert of_seeds(TEN.consensus, FEDHQL, "recent_mean", seeds).min() > 0


def test_how_many_states_the_servers_ask_about() -> None:
    """In a round of the paper's there are four rounds of `-plus`."""
    times = []
    for task in ("acrobot-n5", "mountaincar-n5", "cartpole-n5", "lunarlander-n5"):
        paper, plus = (
            read_settings(preset_text(f"{task}{suffix}")).federation for suffix in ("", "-plus")
        )
        rounds = paper.self_learning_env_steps / plus.self_learning_env_steps
        times.append(rounds * (plus.query_batch + plus.replay_batch) / paper.query_batch)
    told = "it asks about {:.0f} times as many states as the paper's on CartPole, and {:.0f} times"
    assert told.format(*times[2:]) in words("plus.md")
    assert times[0] == times[1]
    assert f"they ask about {times[0]:.0f} times as many states as without" in words("plus.md")
    told = f"about {plus.query_batch + plus.replay_batch:,} states: {plus.query_batch} new ones and"
    assert f"{told} {plus.replay_batch} from its memory." in words("plus.md")


def test_what_leaving_out_shows_of_ten_agents() -> None:
    name, page = "cartpole-n10-sceptical", words("plus.md")
    assert f"\n\n{left_out(name)}\n\n" in (DOCS / "plus.md").read_text()
    run = load_run(DOCS / "plus" / "leave-one-out" / name)
    report = load_run(DOCS / "plus" / "sceptics" / "cartpole-n10-report")
    (arm,) = report.arms
    on_h200 = [
        np.array([until(200_000, of[arm][seed]).second_half_mean().mean() for seed in range(10)])
        for of in (report.arms, report.after_rounds, report.consensus)
    ]
    has = "has {:.0f} after self-learning, {:.0f} after rounds and {:.0f} for the consensus policy."
    assert has.format(*(half.mean() for half in on_h200)) in page
    here = halves(run, FEDHQL)
    sure = (
        "broadcast=chosen",
        "learning_rate=0.05",
        "pessimism=0",
        "replay_batch=0",
        "rule=median-mad",
        "server_environments=reset",
    )
    random, memory = "random_actions=0", "replay_capacity=50000"
    always = {(arm, i) for arm in sure for i in (0, 1)} | {(memory, 1)}
    assert shown(name, here) == always | {(random, 0), (random, 1), (memory, 0)}
    assert shown(name, on_h200) == always
    of_chosen = halves(run, "broadcast=chosen")[0]
    high, low = (np.sort(of_chosen[which]) for which in (of_chosen > 100, of_chosen <= 100))
    measures = [
        run.measures[Cell("broadcast=chosen", seed)]
        for seed in np.flatnonzero(of_chosen <= 100).tolist()
    ]
    expected = np.array([of.start_values_N.mean() for of in measures])
    *calm, most = np.sort(expected)
    got = measures[int(expected.argmax())].discounted_N.mean()
    assert len(calm) == 5
    assert (
        f"divide the seeds: {len(high)} of 10 have {high[0]:.0f} or more, and the others "
        f"{low[0]:.0f} to {low[-1]:.0f}. In one of these six, agents expect {most:,.0f} at the end "
        f"and get {got:.0f}. In the other five they expect {calm[0]:,.0f} to {calm[-1]:,.0f}."
        in page
    )
    larger = "query_batch=128,self_learning_env_steps=5000"
    sooner, later = (all_have_500(run.arms[of]) for of in (FEDHQL, larger))
    assert f"reached 500 by {sooner:,.0f} env steps instead of {later:,.0f}." in page


def test_what_leaving_out_shows_of_lunarlander() -> None:
    name, page = "lunarlander-n5-recalling", words("plus.md")
    assert f"\n\n{left_out(name)}\n\n" in (DOCS / "plus.md").read_text()
    run = load_run(DOCS / "plus" / "leave-one-out" / name)
    for seed, curve in run.arms[FEDHQL].items():
        begun = until(240_000, FIVE.arms[FEDHQL][seed])
        np.testing.assert_array_equal(curve.returns_NE, begun.returns_NE)
    helps = (
        "server_environments=reset",
        "random_actions=0",
        "learning_rate=0.05",
        "pessimism=1",
        "query_batch=128,self_learning_env_steps=10000",
        "replay_batch=96",
    )
    assert shown(name, halves(run, FEDHQL)) == {(arm, i) for arm in helps for i in (0, 1)}
    taken = [
        5 * (curve.taken_E[-1] - curve.own_E[-1])
        for curve in (until(240_000, of) for of in FIVE.arms[FEDHQL].values())
        if curve.taken_E is not None and curve.own_E is not None
    ]
    assert len(taken) == 31
    assert f"the server has taken {max(taken):,.0f} steps at most." in page

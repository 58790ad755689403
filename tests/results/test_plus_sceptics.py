"""What docs say of random actions that fall, in full, and of sceptics, from the committed runs."""

import csv
from typing import NamedTuple

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.plus_figure import PANELS, draw
from benchmarks.plus_search import TASKS, Row, compare, gains, read, score
from fedhql.results.load import load_run
from fedhql.results.objectives import Estimate
from fedhql.settings.experiment import read_settings
from fedhql.settings.presets import preset_text
from fedhql.storage.arm_names import INDEPENDENT
from fedhql.storage.run_directory import Cell
from tests.results.test_plus import (
    BASELINES,
    CHOSEN,
    DOCS,
    PAPERS_BY_TASK,
    SCEPTICAL_SERVER,
    words,
)
from tests.results.test_plus_candidates import (
    AT_20,
    LARGE,
    SECOND_HALVES,
    all_have_500,
    halves,
    left_out,
    until,
)

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
    told = (
        f"adds {adds[0]} on CartPole N=5, {adds[1]} on N=10 and {adds[2]} on LunarLander. By the "
        f"first rule it would replace `-plus`: its worst task scores {worst[0]:.3f}, that of "
        f"`-plus` {worst[1]:.3f}."
    )
    assert told in words("plus/search.md")
    assert worst[0] > worst[1]
    before = Estimate.of(gains(AT_20, "cartpole-n5", LARGE, "fedhql"))
    assert f"the memory had added {before} in [an" in words("plus/search.md")


def test_when_every_agent_has_reached_500() -> None:
    five, ten = (reached(f"cartpole-n{n}", FELL) for n in (5, 10))
    last = [max(row.env_steps_to_500 for row in rows) for rows in (five, ten)]
    seeds = [len({row.seed for row in rows}) for rows in (five, ten)]
    plus = [
        np.mean([row.best_by_100000 == 500 for row in reached(f"cartpole-n{n}", "fedhql")])
        for n in (5, 10)
    ]
    beside = [len({row.seed for row in reached(f"cartpole-n{n}", "fedhql")}) for n in (5, 10)]
    told = (
        f"once in every seed by {last[0]:,.0f} env steps with N=5 ({seeds[0]} seeds) and by "
        f"{last[1]:,.0f} with N=10 ({seeds[1]} seeds). That is {last[0] / CARTPOLE_BUDGET:.1%} and "
        f"{last[1] / CARTPOLE_BUDGET:.1%} of the budget. Beside it `-plus` has {plus[0]:.0%} of "
        f"agents and seeds at 500 by 5% with N=5 ({beside[0]} seeds), and {plus[1]:.0%} with N=10 "
        f"({beside[1]} seeds)."
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
    of_others = [more(five, [*ours, *BASELINES], other=o) for o in (INDEPENDENT, papers)]
    of_plus = [
        more(five, [*(r for r in ours if r.seed in part), *BASELINES], other=CHOSEN)
        for part in (range(40, 50), range(5, 15))
    ]
    (end,) = {row.env_steps for row in BASELINES if (row.task, row.arm) == (five, CHOSEN)}
    assert (
        "{} above alone and {} above the paper's server. It is above `-plus` by {} with seeds 40 "
        "to 49, and by {} with 5 to 14. The others are of [the last runs](#last-runs): other "
        "programs, cut at {:,} env steps instead of {:,}.".format(
            *of_others, *of_plus, end, ours[0].env_steps
        )
        in words("plus/search.md")
    )


SCEPTICAL = "rule=sceptical"
# Folder -> its task and seeds.
RUNS_OF_SCEPTICS = {
    "cartpole-n5": ("cartpole-n5", "100 to 105"),
    "cartpole-n5-last": ("cartpole-n5", "40 to 45"),
    "cartpole-n10": ("cartpole-n10", "100 to 105"),
    "cartpole-n5-report": ("cartpole-n5", "0 to 14, 40 to 49"),
    "cartpole-n10-report": ("cartpole-n10", "0 to 14, 40 to 49"),
}
SCEPTICS = {name: load_run(DOCS / "plus" / "sceptics" / name) for name in RUNS_OF_SCEPTICS}
EARLY = DOCS / "plus" / "early.csv"


def of_sceptics() -> str:
    """Return the table of the rule `sceptical` on CartPole."""
    lines = [
        "| task | seeds | ends at | second half | after rounds | consensus | all at 500 by "
        "| expects / gets |",
        "|---|---|" + "---:|" * 6,
    ]
    for name, (task, seeds) in RUNS_OF_SCEPTICS.items():
        run = SCEPTICS[name]
        curves_S = run.arms[SCEPTICAL]
        (end,) = {float(curve.consumed_E[-1]) for curve in curves_S.values()}
        measures = [run.measures[Cell(SCEPTICAL, seed)] for seed in curves_S]
        expected, got = (
            np.mean([getattr(of, what).mean() for of in measures])
            for what in ("start_values_N", "discounted_N")
        )
        means = " | ".join(f"{half.mean():.0f}" for half in halves(run, SCEPTICAL))
        reached_by = all_have_500(curves_S)
        lines.append(
            f"| {task} | {seeds} | {end:,.0f} | {means} | {reached_by:,.0f} "
            f"| {expected:.0f} / {got:.0f} |"
        )
    return "\n".join(lines)


def added_to(name: str, task: str, arm: str, rows: list[Row]) -> list[Estimate]:
    """Return what `sceptical` adds: after self-learning, after rounds, to the consensus policy."""
    of_arm = {row.seed: row for row in rows if (row.task, row.arm) == (task, arm)}
    seeds = sorted(SCEPTICS[name].arms[SCEPTICAL])
    return [
        Estimate.of(half - [getattr(of_arm[seed], column) for seed in seeds])
        for half, column in zip(halves(SCEPTICS[name], SCEPTICAL), SECOND_HALVES, strict=True)
    ]


def added_early(task: str, choice: str) -> list[str]:
    """Return what a choice adds: after self-learning, after rounds, and to the consensus policy."""
    with EARLY.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["task"] == task]
    assert len({(row["from_env_steps"], row["to_env_steps"]) for row in rows}) == 1
    of = {(row["choice"], row["seed"]): row for row in rows}
    seeds = sorted({row["seed"] for row in rows})
    return [
        str(
            Estimate.of(
                np.array(
                    [float(of[choice, s][name]) - float(of["without", s][name]) for s in seeds]
                )
            )
        )
        for name in ("self_learning", "rounds", "consensus")
    ]


def told_of_sceptics() -> list[str]:
    five, ten = "cartpole-n5", "cartpole-n10"
    papers = PAPERS_BY_TASK[five]
    of_last = [
        added_to("cartpole-n5-last", five, other, [*LAST, *BASELINES])[0]
        for other in (FELL, CHOSEN, papers, INDEPENDENT)
    ]
    lander = added_early("lunarlander-n5", SCEPTICAL)
    gap = added_early(five, "action_gap=0.5")
    return [
        "it adds {} to `-plus` after self-learning, {} after rounds and {} to the consensus "
        "policy.".format(*added_to(ten, ten, "fedhql", SEARCHED)),
        f"Compared with the candidate above it adds {added_to(ten, ten, FELL, SEARCHED)[0]} after",
        "it adds {} after self-learning, {} after rounds and {} to the consensus policy.".format(
            *added_to(five, five, FELL, SEARCHED)
        ),
        "With seeds 40 to 45 it adds {} to the candidate after self-learning, {} to `-plus`, {} to "
        "the paper's server and {} to agents alone.".format(*of_last),
        "from 60,000 to 100,000 env steps it adds {} after self-learning, {} after rounds and {} "
        "to the consensus policy (3 seeds).".format(*lander),
        "from 60,000 to 130,000 env steps ν = 0.5 adds {} after self-learning, {} after rounds and "
        "{} to the consensus policy (6 seeds).".format(*gap),
    ]


def test_what_is_told_of_sceptics_and_gaps() -> None:
    assert f"\n\n{of_sceptics()}\n\n" in (DOCS / "plus" / "search.md").read_text()
    for sentence in told_of_sceptics():
        assert sentence in words("plus/search.md")


def test_the_third_rule_gives_sceptics_to_cartpole() -> None:
    for task in ("cartpole-n5", "cartpole-n10"):
        curves_S = SCEPTICS[task].arms[SCEPTICAL]
        assert [*curves_S] == [*range(100, 106)]
        assert {round(curve.consumed_E[-1]) for curve in curves_S.values()} == {400_000}
        assert added_to(task, task, "fedhql", SEARCHED)[0].low > 0
        assert all_have_500(curves_S) <= CARTPOLE_BUDGET / 20
        run = SCEPTICS[task].settings["federation"]
        chosen = run | {"rule": "sceptical"}
        preset = read_settings(preset_text(f"{task}-plus")).federation.model_dump()
        assert {name: preset[name] for name in chosen} == chosen


def test_how_much_sceptics_add_to_the_second_server() -> None:
    """Two ways to the same: the rows that the page compares, and the curves."""
    appendix = (DOCS / "plus" / "search.md").read_text()
    lines = []
    for task in ("cartpole-n5", "cartpole-n10"):
        rows = [row for row in BASELINES if row.task == task]
        curves_S = SCEPTICS[f"{task}-report"].arms[SCEPTICAL]
        for row in rows:
            if row.arm == SCEPTICAL_SERVER:
                there = until(row.env_steps, curves_S[row.seed]).second_half_mean().mean()
                assert row.second_half == pytest.approx(there, rel=1e-4)
        for seeds in (range(50), range(15), range(40, 50)):
            some = [row for row in rows if row.seed in seeds]
            added = [
                str(Estimate.of(gains(some, task, SCEPTICAL_SERVER, CHOSEN, column)))
                for column in SECOND_HALVES
            ]
            name = "all" if len(seeds) == 50 else f"{seeds[0]} to {seeds[-1]}"
            lines.append(f"| {task} | {name} | {' | '.join(added)} |")
    assert "\n".join(lines) in appendix


def test_when_agents_of_sceptics_have_500() -> None:
    page = words("plus.md")
    for task, after in (("cartpole-n5", "CartPole N=10"), ("cartpole-n10", "LunarLander")):
        curves_S = SCEPTICS[f"{task}-report"].arms[SCEPTICAL]
        share = np.ceil(1000 * all_have_500(curves_S) / CARTPOLE_BUDGET) / 10
        assert f"once in every seed by {share} % of the budget. - **{after}" in page


def test_what_each_choice_of_sceptics_adds() -> None:
    assert f"\n\n{left_out('cartpole-n5-sceptical')}\n\n" in (DOCS / "plus.md").read_text()
    run, page = (
        load_run(DOCS / "plus" / "leave-one-out" / "cartpole-n5-sceptical"),
        words("plus.md"),
    )
    without, chosen = (halves(run, arm)[0] for arm in ("random_actions=0", "broadcast=chosen"))
    first, second = (
        f"have {name}, and the lowest has {half.min():.0f}."
        for half, name in ((without, "460 or more"), (chosen, "it"))
    )
    counts = [(half >= 460).sum() for half in (without, chosen)]
    assert f"Without random actions {counts[0]} of 10 seeds {first} With targets for" in page
    assert f"targets for the chosen action alone {counts[1]} {second}" in page
    ratios = []
    for arm in ("fedhql", "pessimism=0", "rule=median-mad"):
        measures = [run.measures[Cell(arm, seed)] for seed in run.arms[arm]]
        expected = np.mean([of.start_values_N.mean() for of in measures])
        ratios.append(expected / np.mean([of.discounted_N.mean() for of in measures]))
    assert (
        "expect {:.1f} times what they get with all choices, {:.1f} times with μ = 0 and {:.1f} "
        "times with `median-mad`.".format(*ratios)
        in page
    )


def shown(name: str, whole: list[NDArray[np.float64]]) -> set[tuple[str, int]]:
    """Return the choices shown to help, compared with `whole`: 0 self-learning, 1 rounds."""
    run = load_run(DOCS / "plus" / "leave-one-out" / name)
    return {
        (arm, i)
        for arm in run.ordered_arms[1:]
        for i, half in enumerate(halves(run, arm)[:2])
        if Estimate.of(half - whole[i][: len(half)]).high < 0
    }


def test_what_is_shown_to_help_with_either_run_of_all_choices() -> None:
    name, page = "cartpole-n5-sceptical", words("plus.md")
    here = halves(load_run(DOCS / "plus" / "leave-one-out" / name), "fedhql")
    report = SCEPTICS["cartpole-n5-report"]
    on_h200 = [
        np.array(
            [
                until(200_000, of[SCEPTICAL][seed]).returns_NE[:, 1::2][:, 10:].mean()
                for seed in range(10)
            ]
        )
        for of in (report.arms, report.after_rounds, report.consensus)
    ]
    means = "has {:.0f} after self-learning, {:.0f} after rounds and {:.0f} for the consensus"
    assert means.format(*(half.mean() for half in on_h200)) in page
    sure = {"pessimism=0", "replay_batch=0", "server_environments=reset"}
    always = {(arm, i) for arm in sure for i in (0, 1)} | {("rule=median-mad", 1)}
    assert shown(name, here) == always | {("rule=median-mad", 0), ("learning_rate=0.05", 0)}
    assert shown(name, on_h200) == always
    assert (here[0] >= 460).sum() == 10
    many, lowest = (on_h200[0] >= 460).sum(), on_h200[0].min()
    assert f"on the H200 {many} of 10, where the lowest has {lowest:.0f}." in page


def test_returns_of_ten_agents_fall() -> None:
    curves = SCEPTICS["cartpole-n10-report"].arms[SCEPTICAL]
    returns_SNE = np.stack([curve.returns_NE for curve in curves.values()])
    steps_E = next(iter(curves.values())).consumed_E
    early, late = (
        returns_SNE[:, :, (steps_E > low) & (steps_E <= low + 100_000)].mean(axis=(1, 2))
        for low in (100_000, 300_000)
    )
    half_N = np.mean([curve.second_half_mean() for curve in curves.values()], axis=0)
    told = (
        f"env steps have {Estimate.of(early - late)} less than those from 100,000 to 200,000. The "
        f"tenth agent has {half_N[-1]:.0f} over the second half, and the others have "
        f"{half_N[:-1].min():.0f} to {half_N[:-1].max():.0f}."
    )
    assert told in words("plus.md")


def test_what_is_told_of_the_whole_budget() -> None:
    run = load_run(DOCS / "plus" / "sceptics" / "cartpole-n5-whole")
    base = load_run(DOCS / "reproduction" / "h200" / "cartpole-n5")
    page, seeds = words("plus.md"), sorted(run.arms["fedhql"])
    assert seeds == [*range(14)]
    halves = [
        np.array([of["fedhql"][seed].second_half_mean().mean() for seed in seeds])
        for of in (run.arms, run.after_rounds, run.consensus)
    ]
    of_paper = [
        np.array([of["fedhql"][seed].returns_NE[:, 1::2][:, 100:].mean() for seed in seeds])
        for of in (base.after_rounds, base.consensus)
    ]
    told = (
        "{:.0f} for `-plus`, {:.0f} after rounds and {:.0f} for the consensus policy. The gain "
        "over agents alone is {}. After rounds the gain over the paper's server is {}. It is {} "
        "for the consensus policy."
    )
    gained = [Estimate.of(ours - its) for ours, its in zip(halves[1:], of_paper, strict=True)]
    alone = [base.arms["independent"][seed].returns_NE[:, 200:].mean() for seed in seeds]
    over_alone = Estimate.of(halves[0] - alone)
    assert told.format(*(half.mean() for half in halves), over_alone, *gained) in page
    returns_SNE = np.stack([run.arms["fedhql"][seed].returns_NE for seed in seeds])
    assert returns_SNE.shape == (14, 5, 200)
    by_tenth = returns_SNE.mean(axis=(0, 1)).reshape(10, 20).mean(axis=1)
    assert by_tenth[3:].max() < by_tenth[1:3].min()
    tenths_SN = returns_SNE.reshape(len(seeds), 5, 10, 20).mean(axis=-1)
    *others, fourth = (tenths_SN[:, n, 1] - tenths_SN[:, n, -1] for n in (0, 1, 2, 4, 3))
    falls = sorted(fall.mean() for fall in others)
    assert (
        "agents have {:.0f} from 10 to 20 % of the budget and {:.0f} from 20 to 30 %. Then returns "
        "fall, to {:.0f} in the last tenth. From the second tenth to the last Agent4 falls by "
        "{:.0f}, the others by {:.0f} to {:.0f}.".format(
            *by_tenth[[1, 2, -1]], fourth.mean(), falls[0], falls[-1]
        )
        in page
    )
    of_seed = {cell.seed: measured for cell, measured in run.measures.items()}
    for seed in seeds:  # "At its last point `-plus` had no further round."
        last_N = run.after_rounds["fedhql"][seed].returns_NE[:, -1]
        np.testing.assert_array_equal(last_N, run.arms["fedhql"][seed].returns_NE[:, -1])
    expected_SN = np.array([of_seed[seed].start_values_N for seed in seeds])
    away_S = expected_SN[:, 3] > 1000
    assert (expected_SN > 1000).sum() == away_S.sum()
    away = np.sort(expected_SN[away_S, 3])
    measured = [of_seed[seed] for seed, is_away in zip(seeds, away_S, strict=True) if not is_away]
    expected, got = (
        np.array([getattr(of, name) for of in measured])
        for name in ("start_values_N", "discounted_N")
    )
    low_S = expected.mean(axis=1) < 100
    assert (
        f"In these {len(measured)} seeds agents expect {expected.mean() / got.mean():.1f} times "
        "what they get. But in three of them, 2, 3 and 6, they expect only "
        f"{expected[low_S].min():.0f} to {expected[low_S].max():.0f} and get "
        f"{got[low_S].min():.0f} to {got[low_S].max():.0f}." in page
    )
    last, rest = tenths_SN[away_S, 3, -1].mean(), returns_SNE[~away_S, 3, 100:].mean()
    assert (
        f"In {away_S.sum()} of {len(seeds)} seeds Agent4's values run away: it expects "
        f"{away[0]:.0e} to {away[-1]:.0e} at the end, and gets {last:.0f} in the last tenth. In "
        f"the other seeds it has {rest:.0f} over the second half." in page
    )
    assert f"run away in {away_S.sum()} of {len(seeds)} seeds" in words("reproduction.md")


def test_whole_runs_begin_as_those_that_leave_a_choice_out() -> None:
    whole = load_run(DOCS / "plus" / "sceptics" / "cartpole-n5-whole").arms["fedhql"]
    short = load_run(DOCS / "plus" / "leave-one-out" / "cartpole-n5-sceptical").arms["fedhql"]
    same = [
        seed
        for seed, curve in short.items()
        if np.array_equal(curve.returns_NE, whole[seed].returns_NE[:, :20])
    ]
    assert same == [4, 5, 6, 7, 8, 9]
    assert "Those from 4 to 9 begin with the runs of" in words("plus/search.md")
    (on_gpu,) = load_run(DOCS / "plus" / "sceptics" / "cartpole-n5-report").arms.values()
    half_S = np.array([whole[seed].returns_NE[:, 10:20].mean() for seed in whole])
    on_gpu_S = np.array([on_gpu[seed].returns_NE[:, 1:40:2][:, 10:].mean() for seed in whole])
    further = half_S[[seed not in same for seed in whole]]
    assert (len(further), len(half_S)) == (8, 14)
    assert (
        f"Their eight further seeds have {further.min():.0f} to {further.max():.0f} to 10 % of the "
        "budget, but over all 14 seeds CPUs are not shown to have more than the H200: "
        f"{Estimate.of(half_S - on_gpu_S)}." in words("plus.md")
    )


def test_the_picture_is_of_the_committed_runs() -> None:
    drawn = {name: Figure().subplots() for name in PANELS}
    for name, panel in PANELS.items():
        draw(drawn[name], panel)
    ends = {
        name: [np.asarray(line.get_ydata())[-1] for line in of.lines] for name, of in drawn.items()
    }
    labels = [line.get_label() for of in drawn.values() for line in of.lines]
    counts = [15, 15, 14, 15, 15, 25, 25, 25, 25, 5, 5, 10]
    assert [int(str(label).split(", ")[1].split()[0]) for label in labels] == counts
    whole = load_run(DOCS / "plus" / "sceptics" / "cartpole-n5-whole").after_rounds["fedhql"]
    last = np.mean([curve.returns_NE[:, -1] for curve in whole.values()])
    assert ends["CartPole, 5 agents"][2] == pytest.approx(last)

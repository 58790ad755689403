"""What docs/plus.md and its appendix say of candidates for `-plus`, from the committed runs."""

import numpy as np
import pytest

from benchmarks.plus_search import TASKS, Row, compare, gains, rank, read, rows_in
from fedhql.results.curves import Arms, Curve, Run
from fedhql.results.load import load_run
from fedhql.results.objectives import Estimate
from fedhql.storage.arm_names import label
from tests.results.test_plus import DOCS, expected_of_got, words

RANDOM, ADVANTAGE = (rows_in(DOCS / "plus" / name) for name in ("random", "advantage"))
AT_20, OF_LANDER = (read(DOCS / "plus" / f"search-random{name}.csv") for name in ("", "-lander"))
SOME, MANY, WIDER = "random_actions=0.1", "random_actions=0.3", "advantage_weight=0.9"
SECOND_HALVES = ("second_half", "second_half_after_rounds", "second_half_consensus")
SOON = 100_000  # env steps


def until(env_steps: int, curve: Curve) -> Curve:
    found = curve.until(env_steps)
    assert found is not None
    return found


def all_have_500(curves_S: dict[int, Curve]) -> float:
    """Return by which env steps every agent has reached 500 once in every seed; inf if never."""
    best_SNE = np.stack([curve.best for curve in curves_S.values()])
    reached_E = (best_SNE == 500).all(axis=(0, 1))
    steps_E = next(iter(curves_S.values())).consumed_E
    return float(steps_E[reached_E][0]) if reached_E.any() else np.inf


def added_early(arms: Arms, arm: str) -> Estimate:
    """Return what `arm` adds to the mean of the evaluations until SOON."""
    early = [
        np.array([until(SOON, curve).returns_NE.mean() for _, curve in sorted(arms[of].items())])
        for of in (arm, "fedhql")
    ]
    return Estimate.of(early[0] - early[1])


def added(task: str, arm: str, column: str, other: str = "fedhql") -> str:
    """Return what `arm` adds to a column of the runs with random actions."""
    return str(Estimate.of(gains(RANDOM, task, arm, other, column)))


def test_what_is_told_of_random_actions() -> None:
    appendix, page = words("plus/search.md"), words("plus.md")
    five, ten = (
        load_run(DOCS / "plus" / "random" / task).arms for task in ("cartpole-n5", "cartpole-n10")
    )
    some, many, plus = (all_have_500(five[arm]) for arm in (SOME, MANY, "fedhql"))
    told = f"by {some:,.0f} env steps with 0.1 and by {many:,.0f} with 0.3 (N=5)."
    assert f"{told} `-plus` needs {plus:,.0f}," in appendix
    of_ten = f"With N=10 and 0.1 it is {all_have_500(ten[SOME]):,.0f}."
    assert of_ten in appendix
    share = np.mean([until(SOON, curve).max_mean() == 500 for curve in ten["fedhql"].values()])
    assert f"`-plus` has {100 * share:.0f} % of the agents and seeds at 500 by" in appendix
    for_page = (some / 2e6, all_have_500(ten[SOME]) / 2e6, plus / 2e6)
    told = (
        "by {:.1%} of the budget with N=5 and by {:.1%} with N=10. In the same runs `-plus` needs "
        "{:.1%} with N=5"
    )
    assert told.format(*for_page).replace("%", " %") in page
    early = added_early(five, SOME), added_early(five, MANY), added_early(ten, SOME)
    told = "higher by {} with 0.1 and {} with 0.3 (N=5), and by {} with 0.1 (N=10).".format(*early)
    assert told in appendix
    of_ten_agents = [added("cartpole-n10", SOME, name) for name in SECOND_HALVES]
    told = "0.1 adds {} after self-learning, {} after rounds and {} to the consensus policy."
    assert told.format(*of_ten_agents) in appendix
    assert f"On N=10 random actions add {of_ten_agents[0]} to the second half" in page
    of_five = [added("cartpole-n5", arm, n) for arm in (SOME, MANY) for n in SECOND_HALVES[:2]]
    told = "0.1 adds {} after self-learning and {} after rounds, and 0.3 adds {} and {}."
    assert told.format(*of_five) in appendix
    assert f"On N=5 no gain is shown there: {of_five[0]}." in page
    ratios = [expected_of_got("cartpole-n5", arm, RANDOM) for arm in (SOME, "fedhql")]
    told = "expect {:.1f} times what they get, and {:.1f} times with `-plus`.".format(*ratios)
    assert told in appendix


def test_what_is_told_of_random_actions_on_lunarlander() -> None:
    task = "lunarlander-n5"
    more = [
        gain for column in SECOND_HALVES for gain in gains(RANDOM, task, MANY, "fedhql", column)
    ]
    assert (
        "0.3 adds {:.0f} and {:.0f} in the two seeds after self-learning, {:.0f} and {:.0f} after "
        "rounds, and {:.0f} and {:.0f} to the consensus policy.".format(*more)
        in words("plus/search.md")
    )


def test_what_is_told_of_wider_gaps() -> None:
    appendix, task, both = words("plus/search.md"), "cartpole-n5", f"{WIDER},{SOME}"
    half = added(task, "advantage_weight=0.5", "second_half")
    assert f"β = 0.5 adds {half} to the second half after self-learning." in appendix
    more = [added(task, WIDER, name) for name in SECOND_HALVES[:2]]
    assert "β = 0.9 adds {}, and after rounds {}.".format(*more) in appendix
    beside = [added(f"cartpole-n{n}", both, "second_half", SOME) for n in (5, 10)]
    assert "actions it adds {} with N=5 and {} with N=10.".format(*beside) in appendix
    ratios = [expected_of_got(task, arm, RANDOM) for arm in ("fedhql", WIDER)]
    assert "from {:.1f} to {:.1f} times what they get.".format(*ratios) in appendix
    for arm in ("advantage_weight=0.5", WIDER):  # no gain is shown
        assert Estimate.of(gains(ADVANTAGE, "lunarlander-n5", arm, "fedhql")).low < 0


def test_tables_of_candidates_are_of_their_runs() -> None:
    appendix = (DOCS / "plus" / "search.md").read_text()
    of_runs = map(compare, (RANDOM, ADVANTAGE, AT_20, OF_LANDER))
    for table in (rank(AT_20), *of_runs, left_out()):
        assert f"\n\n{table}\n\n" in appendix


def test_candidates_are_compared_at_equal_consumption() -> None:
    for rows in (RANDOM, ADVANTAGE, AT_20, OF_LANDER):
        for task in TASKS:
            assert len({row.env_steps for row in rows if row.task == task}) <= 1


LARGE = "replay_capacity=200000"


def test_what_is_told_of_random_actions_at_20_percent() -> None:
    appendix, five, ten, lander = words("plus/search.md"), *TASKS

    def more(task: str, arm: str, column: str = "second_half", rows: list[Row] = AT_20) -> str:
        return str(Estimate.of(gains(rows, task, arm, "fedhql", column)))

    assert rank(AT_20).splitlines()[2].startswith(f"| {label(SOME)} |")
    of_tasks = more(lander, SOME), more(ten, SOME), more(five, SOME)
    assert (
        "There 0.1 adds {} to `-plus`, so no gain is shown. On CartPole N=10 it adds {}, and on "
        "N=5 {}.".format(*of_tasks)
        in appendix
    )
    assert f"0.3 adds {more(ten, MANY)} with N=10" in appendix
    of_memory = [more(task, LARGE) for task in TASKS]
    less = -gains(AT_20, lander, LARGE, "fedhql", "second_half_consensus")
    assert (
        "alone adds {} on CartPole N=5, {} on N=10 and {} on LunarLander. On LunarLander its "
        "consensus policy has {} less.".format(*of_memory, Estimate.of(less))
        in appendix
    )
    learned, after, consensus = (more(lander, f"{MANY},{LARGE}", name) for name in SECOND_HALVES)
    assert (
        f"200,000 adds {after} after rounds, {learned} after self-learning and {consensus} to the "
        "consensus policy." in appendix
    )


def halves(run: Run, arm: str) -> list[np.ndarray]:
    """Return the second halves of every seed: after self-learning, after rounds, consensus."""
    return [
        np.array([of[arm][seed].second_half_mean().mean() for seed in sorted(of[arm])])
        for of in (run.arms, run.after_rounds, run.consensus)
    ]


def left_out() -> str:
    """Return the table of the candidate with one choice taken back."""
    run = load_run(DOCS / "plus" / "leave-one-out" / "cartpole-n5")
    lines = [
        "| choice | second half | after rounds | consensus | adds | adds after rounds "
        "| all at 500 by |",
        "|---|" + "---:|" * 6,
    ]
    whole = halves(run, "fedhql")
    for arm in run.ordered_arms:
        of_arm = halves(run, arm)
        cells = [f"{half.mean():.0f}" for half in of_arm]
        if arm == "fedhql":
            cells += ["-", "-"]
        else:
            cells += [str(Estimate.of(of_arm[i] - whole[i])) for i in (0, 1)]
        when = all_have_500(run.arms[arm])
        cells.append("-" if np.isinf(when) else f"{when:,.0f}")
        lines.append(
            f"| {'all of them' if arm == 'fedhql' else label(arm)} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def test_what_is_told_of_leaving_choices_out() -> None:
    """The differences that their intervals show, and no others."""
    run = load_run(DOCS / "plus" / "leave-one-out" / "cartpole-n5")
    whole, shown = halves(run, "fedhql"), {}
    for arm in run.ordered_arms[1:]:
        for i, half in enumerate(halves(run, arm)[:2]):
            of_arm = Estimate.of(half - whole[i])
            if of_arm.low > 0 or of_arm.high < 0:
                shown[arm, i] = of_arm if of_arm.mean > 0 else Estimate.of(whole[i] - half)
    reset, mean_std = "server_environments=reset", "rule=mean-std"
    others = {("random_actions=0", 1), (mean_std, 1), ("pessimism=0", 1)}
    assert shown.keys() == {(reset, 0), (reset, 1)} | others
    told = (
        "Environments that are reset cost {} after self-learning and {} after rounds. After "
        "rounds, random actions cost {}, `mean-std` instead of `median-mad` adds {}, and pessimism "
        "adds {}."
    )
    keys = (reset, 0), (reset, 1), ("random_actions=0", 1), (mean_std, 1), ("pessimism=0", 1)
    assert told.format(*(shown[key] for key in keys)) in words("plus/search.md")


ATTACKS = ("huge", "sign-flip", "collude", "stealthy")


@pytest.mark.parametrize("attackers", [1, 2])
def test_the_table_of_liars_is_of_its_runs(attackers: int) -> None:
    assert f"\n\n{of_liars(attackers)}\n\n" in (DOCS / "robustness.md").read_text()


def of_liars(attackers: int) -> str:
    """Return the table of the honest agents' second halves and their shares."""
    names = {"median-mad": "`median-mad`", "hampel": "`hampel`", "trimmed,trim=2": "`trimmed` 2"}
    lines = [
        f"| {attackers} of 5 | nobody lies | {' | '.join(f'`{name}`' for name in ATTACKS)} |",
        "|---|" + "---:|" * 5,
    ]
    for rule, name in names.items():
        clean, *kept = honest_halves(rule, attackers)
        cells = [f"{half:.0f} {half / clean:.0%}" for half in kept]
        bold = [
            f"**{cell}**" if half < 0.9 * clean else cell
            for cell, half in zip(cells, kept, strict=True)
        ]
        lines.append(f"| {name} | {clean:.0f} | {' | '.join(bold)} |")
    return "\n".join(lines)


def honest_halves(rule: str, attackers: int) -> list[float]:
    """Return the mean second half of the agents that are honest: clean, then under each attack."""
    run = load_run(DOCS / "plus" / "liars" / "cartpole-n5")
    arms = [f"rule={rule},attack={attack},attackers={attackers}" for attack in ATTACKS]
    return [
        float(np.mean([of.second_half_mean()[: 5 - attackers] for of in run.arms[arm].values()]))
        for arm in (f"rule={rule}", *arms)
    ]


def test_what_is_told_of_liars() -> None:
    def shares(rule: str, attackers: int) -> dict[str, float]:
        clean, *kept = (round(half, 6) for half in honest_halves(rule, attackers))
        return {name: 100 * of / clean for name, of in zip(ATTACKS, kept, strict=True)}

    rules = "median-mad", "hampel", "trimmed,trim=2"
    median, hampel, trimmed = (shares(rule, 1) for rule in rules)
    page = words("robustness.md")
    assert (
        f"`median-mad` keeps {min(median.values()):.0f} % or more against all four attacks, and "
        f"`hampel` {min(hampel.values()):.0f} %. `trimmed` 2 keeps {trimmed['huge']:.0f} % against"
        in page
    )
    assert min(trimmed, key=lambda name: trimmed[name]) == "huge"
    by_two = [shares(rule, 2) for rule in rules]
    assert all(min(of.values()) < 90 for of in by_two)
    collude, flip = (sorted(of[name] for of in by_two) for name in ("collude", "sign-flip"))
    assert (
        f"`collude` leaves {collude[0]:.0f} to {collude[-1]:.0f} %, and `sign-flip` "
        f"{flip[0]:.0f} to {flip[-1]:.0f} %." in page
    )
    assert min(shares(rule, 1)["sign-flip"] for rule in rules) > 100

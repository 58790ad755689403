"""What docs say of candidates for `-plus` and of liars there, from the committed runs."""

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.plus_search import TASKS, Row, compare, gains, rank, read, rows_in, score
from fedhql.results.curves import Arms, Curve, Run
from fedhql.results.load import load_run
from fedhql.results.objectives import Estimate
from fedhql.storage.arm_names import label
from fedhql.storage.run_directory import Cell
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
    appendix = words("plus/search.md")
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
    early = added_early(five, SOME), added_early(five, MANY), added_early(ten, SOME)
    told = "higher by {} with 0.1 and {} with 0.3 (N=5), and by {} with 0.1 (N=10).".format(*early)
    assert told in appendix
    of_ten_agents = [added("cartpole-n10", SOME, name) for name in SECOND_HALVES]
    told = "0.1 adds {} after self-learning, {} after rounds and {} to the consensus policy."
    assert told.format(*of_ten_agents) in appendix
    of_five = [added("cartpole-n5", arm, n) for arm in (SOME, MANY) for n in SECOND_HALVES[:2]]
    told = "0.1 adds {} after self-learning and {} after rounds, and 0.3 adds {} and {}."
    assert told.format(*of_five) in appendix
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
    for table in (rank(AT_20), *of_runs, left_out("cartpole-n5")):
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
        "there 0.1 adds {} to `-plus`, so no gain is shown. On CartPole N=10 it adds {}, and on "
        "N=5 {}.".format(*of_tasks)
        in appendix
    )
    lander_scores = [
        score([row for row in AT_20 if (row.task, row.arm) == (lander, arm)])
        for arm in (SOME, "fedhql")
    ]
    assert "On LunarLander 0.1 scores {:.3f} and `-plus` {:.3f}.".format(*lander_scores) in appendix
    lowers = [Estimate.of(-gains(AT_20, ten, arm, "fedhql")) for arm in (SOME, MANY)]
    assert "lower the second half**, 0.1 by {} and 0.3 by {}.".format(*lowers) in appendix
    on_five = [
        Estimate.of(gains(AT_20, five, arm, "fedhql")) for arm in (SOME, "random_actions=0.2", MANY)
    ]
    assert all(of.low < 0 < of.high for of in on_five)
    larger = [Estimate.of(gains(AT_20, ten, f"{arm},{LARGE}", arm)) for arm in (SOME, MANY)]
    assert "200,000 transitions add {} to 0.1 and {} to 0.3.".format(*larger) in appendix
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


def halves(run: Run, arm: str) -> list[NDArray[np.float64]]:
    """Return the second halves of every seed: after self-learning, after rounds, consensus."""
    return [
        np.array([of[arm][seed].second_half_mean().mean() for seed in sorted(of[arm])])
        for of in (run.arms, run.after_rounds, run.consensus)
    ]


def left_out(name: str) -> str:
    """Return the table of a server with one choice taken back."""
    run = load_run(DOCS / "plus" / "leave-one-out" / name)
    has_highest_return = name.startswith("cartpole")
    last = "all at 500 by" if has_highest_return else "change of consensus"
    lines = [
        "| choice | seeds | second half | after rounds | consensus | change | change after rounds "
        f"| {last} |",
        "|---|" + "---:|" * 7,
    ]
    whole = halves(run, "fedhql")
    for arm in run.ordered_arms:
        of_arm = halves(run, arm)
        assert [*run.arms["fedhql"]][: len(of_arm[0])] == [*run.arms[arm]]
        cells = [str(len(of_arm[0])), *(f"{half.mean():.0f}" for half in of_arm)]
        if arm == "fedhql":
            more = ["-", "-", "-"]
        else:
            pairs = zip(of_arm, whole, strict=True)
            more = [str(Estimate.of(half - of_whole[: len(half)])) for half, of_whole in pairs]
        if has_highest_return:
            when = all_have_500(run.arms[arm])
            more[2] = "-" if np.isinf(when) else f"{when:,.0f}"
        lines.append(
            f"| {'all of them' if arm == 'fedhql' else label(arm)} | {' | '.join(cells + more)} |"
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
    chosen = "broadcast=chosen"
    assert all_have_500(run.arms[chosen]) == min(map(all_have_500, run.arms.values()))
    assert (
        f"reach 500 first, by {all_have_500(run.arms[chosen]):,.0f} env steps, and then the seeds "
        "differ most: their second halves are {:.0f}, {:.0f}, {:.0f} and {:.0f}.".format(
            *halves(run, chosen)[0]
        )
        in words("plus/search.md")
    )
    deviations = {arm: halves(run, arm)[0].std() for arm in run.ordered_arms}
    assert deviations[chosen] == max(deviations.values())


ATTACKS = ("huge", "sign-flip", "collude", "stealthy")
AUDITIONED = "median-mad,auditions=2"


@pytest.mark.parametrize("attackers", [1, 2])
def test_the_table_of_liars_is_of_its_runs(attackers: int) -> None:
    assert f"\n\n{of_liars(attackers)}\n\n" in (DOCS / "robustness.md").read_text()


def of_liars(attackers: int) -> str:
    """Return the table of the honest agents' second halves and their shares."""
    names = {
        "median-mad": "`median-mad`",
        "hampel": "`hampel`",
        "trimmed,trim=2": "`trimmed` 2",
        AUDITIONED: "`median-mad` with auditions",
        "sceptical": "`sceptical`",
    }
    lines = [
        f"| {attackers} of 5 | nobody lies | {' | '.join(f'`{name}`' for name in ATTACKS)} |",
        "|---|" + "---:|" * 5,
    ]
    for rule, name in names.items():
        clean, *kept = (half.mean() for half in honest_halves(rule, attackers))
        cells = [f"{half:.0f} {half / clean:.0%}" for half in kept]
        bold = [
            f"**{cell}**" if half < 0.9 * clean else cell
            for cell, half in zip(cells, kept, strict=True)
        ]
        lines.append(f"| {name} | {clean:.0f} | {' | '.join(bold)} |")
    return "\n".join(lines)


def honest_halves(rule: str, attackers: int) -> list[NDArray[np.float64]]:
    """Return the second halves of the honest agents, by seed: clean, then under each attack."""
    folder, rule = ("auditions", "median-mad") if rule == AUDITIONED else ("liars", rule)
    names = [f"rule={rule},attack={attack},attackers={attackers}" for attack in ATTACKS]
    if rule == "sceptical":
        arms = load_run(DOCS / "plus" / folder / "cartpole-n5-sceptical").arms
        clean = load_run(DOCS / "plus" / "leave-one-out" / "cartpole-n5-sceptical").arms["fedhql"]
    else:
        arms = load_run(DOCS / "plus" / folder / "cartpole-n5").arms
        clean = arms[f"rule={rule}"]
    return [
        np.array([of[seed].second_half_mean()[: 5 - attackers].mean() for seed in range(5)])
        for of in (clean, *(arms[name] for name in names))
    ]


def test_what_is_told_of_liars() -> None:
    def shares(rule: str, attackers: int) -> dict[str, float]:
        clean, *kept = (half.mean() for half in honest_halves(rule, attackers))
        return {name: 100 * of / clean for name, of in zip(ATTACKS, kept, strict=True)}

    def change(rule: str, attack: str) -> str:
        """Return what one liar changes."""
        clean_S, *attacked = honest_halves(rule, 1)
        return str(Estimate.of(attacked[ATTACKS.index(attack)] - clean_S))

    rules = "median-mad", "hampel", "trimmed,trim=2"
    median, hampel, trimmed = (shares(rule, 1) for rule in rules)
    page = words("robustness.md")
    assert (
        f"`median-mad` keeps {min(median.values()):.0f} % or more against all four attacks, and "
        f"`hampel` {min(hampel.values()):.0f} %. Five seeds do not exclude a larger loss: `huge` "
        f"changes `median-mad` by {change('median-mad', 'huge')}, and `collude` changes `hampel` "
        f"by {change('hampel', 'collude')}. `trimmed` 2 keeps {trimmed['huge']:.0f} % against "
        f"`huge`, a change of {change('trimmed,trim=2', 'huge')}." in page
    )
    assert min(trimmed, key=lambda name: trimmed[name]) == "huge"
    helped = [change(rule, "sign-flip") for rule in rules]
    assert (
        "with `median-mad` by {}, with `hampel` by {} and with `trimmed` 2 by {}.".format(*helped)
        in page
    )
    by_two = [shares(rule, 2) for rule in rules]
    assert all(min(of.values()) < 90 for of in by_two)
    collude, flip = (sorted(of[name] for of in by_two) for name in ("collude", "sign-flip"))
    assert (
        f"`collude` leaves {collude[0]:.0f} to {collude[-1]:.0f} %, and `sign-flip` "
        f"{flip[0]:.0f} to {flip[-1]:.0f} %." in page
    )


def test_what_is_told_of_liars_among_sceptics() -> None:
    page = words("robustness.md")
    (one_clean, _, one, *_), (clean, huge, flip, collude, stealthy) = (
        honest_halves("sceptical", k) for k in (1, 2)
    )
    assert Estimate.of(stealthy - clean).high > 0
    (report,) = load_run(DOCS / "plus" / "sceptics" / "cartpole-n5-report").arms.values()
    on_gpu = np.array(
        [until(200_000, report[seed]).second_half_mean()[:4].mean() for seed in range(5)]
    )
    by_one, on_gpu_by_one, by_two, by_collusion = (
        f"{100 * kept.mean() / of.mean():.0f}"
        for kept, of in ((one, one_clean), (one, on_gpu), (flip, clean), (collude, clean))
    )
    assert (
        f"`sign-flip` leaves {by_two} %, `collude` {by_collusion} % and `huge` "
        f"{100 * huge.mean() / clean.mean():.0f} %." in page
    )
    assert (
        f"One `sign-flip` leaves {by_one} %, a change of {Estimate.of(one - one_clean)}. Here the "
        "clean run matters: in it every agent has 500 in all five seeds." in page
    )
    assert {*one_clean.round(), *clean.round()} == {500}
    assert (
        f"the same seeds have {on_gpu.mean():.0f}. Compared with that, one liar leaves "
        f"{on_gpu_by_one} %, a change of {Estimate.of(one - on_gpu)}, so no loss is shown." in page
    )
    lost = [100 - int(kept) for kept in (by_two, by_one, on_gpu_by_one)]
    told = "took {} % of its mean return. One took {} %, or {} % when compared with another clean"
    assert told.format(*lost) in page
    told = "two liars took {} % of its mean return, and one {} % ({} % against"
    assert told.format(*lost) in words("limitations.md")
    assert (
        f"leaves {by_one} to {on_gpu_by_one} % of the mean return of CartPole's server, and two "
        f"leave {by_two} %" in words("plus.md")
    )
    run = load_run(DOCS / "plus" / "auditions" / "cartpole-n5-sceptical")
    flips, colludes = (f"rule=sceptical,attack={name},attackers=2" for name in ATTACKS[1:3])
    alone, by_two, by_collusion = (
        np.mean([run.arms[arm][seed].second_half_mean()[:3].mean() for seed in range(5)])
        for arm in ("rule=sceptical", flips, colludes)
    )
    assert (
        f"have {alone:.0f} where nobody lies. Against two that `collude` they keep "
        f"{100 * by_collusion / alone:.0f} %, and against two `sign-flip` "
        f"{100 * by_two / alone:.0f} %." in page
    )
    four, flipped = (
        np.array([run.arms[arm][seed].second_half_mean()[:4].mean() for seed in range(5)])
        for arm in ("rule=sceptical", flips.replace("attackers=2", "attackers=1"))
    )
    assert (
        f"One `sign-flip` leaves {100 * flipped.mean() / four.mean():.0f} % of the four agents' "
        f"{four.mean():.0f}, a change of {Estimate.of(flipped - four)}, and" in page
    )
    audited = load_run(DOCS / "plus" / "auditions" / "cartpole-n5").arms["rule=median-mad"]
    cost = np.mean([curve.second_half_mean() for curve in audited.values()])
    assert f"With it all five agents have {cost:.0f} where nobody lies." in words("plus.md")


def test_what_is_told_of_auditions() -> None:
    page = words("robustness.md")
    halves_of = {k: honest_halves(AUDITIONED, k) for k in (1, 2)}
    least = [
        100 * min(half.mean() for half in kept) / clean.mean()
        for clean, *kept in halves_of.values()
    ]
    without = [
        100 * min(half.mean() for half in kept) / honest_halves("median-mad", k)[0].mean()
        for k, (_, *kept) in halves_of.items()
    ]
    told = (
        "with one liar `median-mad` keeps {:.0f} % or more, and with two {:.0f} %. Of the mean "
        "where nobody lies and there are no auditions, that is {:.0f} % and {:.0f} %."
    )
    assert told.format(*least, *without) in page
    assert f"they keep {min(least):.0f} % or more of the mean return against" in page
    clean_S, *kept = halves_of[2]
    told = (
        "by {} (`huge`), {} (`sign-flip`), {} (`collude`) and {} (`stealthy`). Where nobody lies,"
    )
    assert told.format(*(Estimate.of(half - clean_S) for half in kept)) in page
    costs = Estimate.of(halves_of[1][0] - honest_halves("median-mad", 1)[0])
    assert f"Where nobody lies, auditions change it by {costs}." in page
    run = load_run(DOCS / "plus" / "auditions" / "cartpole-n5")
    curves = run.arms["rule=median-mad,attack=collude,attackers=2"].values()
    early = [until(30_000, curve).returns_NE[:3].mean(axis=0).max() for curve in curves]
    assert len(early) == 5
    told = (
        f"{sum(most < 10 for most in early)} of 5 seeds have less than 10 until 30,000 env steps."
    )
    assert told in page


FALLING = DOCS / "plus" / "falling"
FELL, TO = 60_000, 130_000  # env steps: after training begins, until the shortest run ends


def between(arms: Arms) -> NDArray[np.float64]:
    """Return the mean of the evaluations from FELL to TO, by seed; the run has one arm."""
    ((_, curves_S),) = arms.items()
    return np.array(
        [
            curve.returns_NE[:, (curve.consumed_E >= FELL) & (curve.consumed_E <= TO)].mean()
            for _, curve in sorted(curves_S.items())
        ]
    )


def of_falling() -> str:
    """Return the table of the runs whose random actions fall, and of those beside them."""
    told = {
        "cartpole-n5-rounds": "N=5, no random actions",
        "cartpole-n5-falling": "N=5, until 100,000",
        "cartpole-n5-sooner": "N=5, until 30,000",
        "cartpole-n5-untrained": "N=5, until 100,000, agents do not train",
        "cartpole-n10-falling": "N=10, until 100,000",
    }
    lines = [
        "| random actions | ends at | all at 500 by | after self-learning | after rounds "
        "| consensus |",
        "|---|" + "---:|" * 5,
    ]
    for name, what in told.items():
        run = load_run(FALLING / name)
        ((_, curves_S),) = run.arms.items()
        (end,) = {float(curve.consumed_E[-1]) for curve in curves_S.values()}
        means = [between(arms).mean() for arms in (run.arms, run.after_rounds, run.consensus)]
        cells = [f"{end:,.0f}", f"{all_have_500(curves_S):,.0f}", *(f"{of:.0f}" for of in means)]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def test_what_is_told_of_random_actions_that_fall() -> None:
    assert f"\n\n{of_falling()}\n\n" in (DOCS / "plus" / "search.md").read_text()
    appendix = words("plus/search.md")
    five, ten, untrained, sooner = (
        load_run(FALLING / f"cartpole-{name}")
        for name in ("n5-falling", "n10-falling", "n5-untrained", "n5-sooner")
    )
    reached = {all_have_500(curves_S) for run in (five, ten) for curves_S in run.arms.values()}
    (when,) = reached
    assert (
        f"in every seed by {when:,.0f} env steps, {when / 2e6:.1%}".replace("%", " %") in appendix
    )
    costs = Estimate.of(between(untrained.arms) - between(five.arms))
    after = Estimate.of(between(untrained.after_rounds) - between(five.after_rounds))
    assert (
        f"agents that do not train have {costs} more after self-learning and {after} more after "
        "rounds." in appendix
    )
    left_out_run = load_run(DOCS / "plus" / "leave-one-out" / "cartpole-n5")
    assert all_have_500(left_out_run.arms["broadcast=chosen"]) == when
    assert min(between(untrained.arms)) < 500
    earlier = Estimate.of(between(sooner.arms) - between(five.arms))
    assert f"by 30,000 env steps instead of 100,000 adds {earlier}." in appendix


def test_what_is_told_of_falling_on_lunarlander() -> None:
    falling = load_run(FALLING / "lunarlander-n5-falling")
    (arm,) = falling.arms
    plus = load_run(DOCS / "plus" / "advantage" / "lunarlander-n5")
    more = []
    for ours, theirs in ((falling.arms, plus.arms), (falling.after_rounds, plus.after_rounds)):
        pairs = [(curve, theirs["fedhql"][seed]) for seed, curve in sorted(ours[arm].items())]
        assert all((a.consumed_E == b.consumed_E).all() for a, b in pairs)
        halves_S = [a.second_half_mean().mean() - b.second_half_mean().mean() for a, b in pairs]
        more.append(str(Estimate.of(np.array(halves_S))))
    assert "they add {} to the second half after self-learning and {} after rounds.".format(
        *more
    ) in words("plus/search.md")


def test_what_is_told_of_a_lower_centre() -> None:
    lower = load_run(DOCS / "plus" / "lower-centre" / "cartpole-n5")
    beside = load_run(DOCS / "plus" / "random" / "cartpole-n5")
    (arm,) = lower.arms
    ours, theirs = halves(lower, arm), [half[:3] for half in halves(beside, SOME)]
    assert sorted(lower.arms[arm]) == sorted(beside.arms[SOME])[:3]
    appendix, means = words("plus/search.md"), [half.mean() for half in (*ours, *theirs)]
    assert (
        "The second half is {:.0f} after self-learning, {:.0f} after rounds and {:.0f} for the "
        "consensus policy.".format(*means[:3])
        in appendix
    )
    assert "it is {:.0f}, {:.0f} and {:.0f} with the same seeds.".format(*means[3:]) in appendix
    assert f"do not show a gain: {Estimate.of(ours[0] - theirs[0])}." in appendix
    assert f"every seed by {all_have_500(lower.arms[arm]):,.0f} env steps. At" in appendix
    ratios = [
        sum(of[Cell(name, seed)].start_values_N.mean() for seed in range(100, 103))
        / sum(of[Cell(name, seed)].discounted_N.mean() for seed in range(100, 103))
        for of, name in ((lower.measures, arm), (beside.measures, SOME))
    ]
    told = "agents expect {:.1f} times what they get, and {:.1f} times there.".format(*ratios)
    assert told in appendix


def test_the_file_of_a_lower_centre() -> None:
    text = (DOCS / "plus" / "search.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    given: dict[str, Any] = {}
    exec(code, given)  # the file that the page tells readers to write
    q = np.array([[4.0], [1.0], [5.0], [2.0], [30.0]])
    centre = given["BETWEEN"].build(1.0).centre
    assert centre(q) == 3.0  # between 4 and 2
    present = np.array([True, False, True, True, True])
    assert centre(q, where=present) == 3.25  # between 4.5 and 2

"""What is told of attacked arms: the honest agents, and the same agents without attack."""

import csv
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from fedhql.results.attacks import AttackScore, attack_csv, attack_scores, attack_tables
from fedhql.results.claims import check_claims
from fedhql.results.curves import Arms, Curve, Run
from fedhql.results.figures import attacks_figure, draw_figures
from fedhql.results.report import write_report
from fedhql.results.scores_table import scores_table
from fedhql.results.styles import styles
from fedhql.settings.experiment import read_settings
from fedhql.settings.presets import preset_text
from tests.results.handmade import BUDGET, curve, run_of, settings


def seeds(*agents_at_the_end: Sequence[float]) -> dict[int, Curve]:
    """A curve for each seed: the agents' returns at half of the budget are half of those."""
    return {
        seed: curve([BUDGET / 2, BUDGET], *([value / 2, value] for value in agents))
        for seed, agents in enumerate(agents_at_the_end)
    }


# The last agents do well when they lie: they must not count.
ARMS: Arms = {
    "independent": seeds([20, 30, 40], [20, 30, 40]),
    "fedhql": seeds([100, 200, 300], [300, 400, 300]),
    "attack=noise,attackers=1": seeds([80, 190, 999], [280, 350, 999]),
    "attack=noise,attackers=2": seeds([190, 999, 999], [189, 999, 999]),
    "attack=nan,attackers=2": seeds([30, 999, 999]),
}


def scores(*runs: Run, at: float = 1.0) -> dict[tuple[str, int], AttackScore]:
    found = attack_scores(runs, at=at, level=0.5)
    return {(score.attack, score.attackers): score for score in found}


def test_honest_agents_beside_themselves_without_attack() -> None:
    found = scores(run_of(ARMS))
    assert list(found) == [("nan", 2), ("noise", 1), ("noise", 2)]
    one, two, nan = found["noise", 1], found["noise", 2], found["nan", 2]
    assert one.best.mean == (80 + 190 + 280 + 350) / 4
    assert one.clean is not None
    assert one.clean.mean == (100 + 200 + 300 + 400) / 4
    assert one.alone is not None
    assert one.alone.mean == 25
    assert one.share == pytest.approx(0.9)
    assert one.withstood
    # Of agent1 alone, since the other two lie.
    assert two.share == pytest.approx((190 + 189) / (100 + 300))
    assert two.withstood
    # In the one seed that there is of it. Of two seeds, 50 % reach from one to the other.
    assert (nan.seeds, nan.withstood) == (1, False)
    assert nan.share == pytest.approx(0.3)
    assert (one.best.low, one.best.high) == (135, 315)


def test_at_half_of_the_budget() -> None:
    half = scores(run_of(ARMS), at=0.5)["noise", 1]
    assert half.best.mean == (80 + 190 + 280 + 350) / 8
    assert half.share == pytest.approx(0.9)
    # A run with a larger budget is looked at where the others end.
    larger = settings(agents=3)
    larger["budget"]["env_steps_per_agent"] = 2 * BUDGET
    both = attack_scores(
        [run_of(ARMS), run_of(ARMS, "larger", settings_=larger)], at=1.0, level=0.5
    )
    assert len({(score.attack, score.attackers, score.best.mean) for score in both}) == 3


def test_the_recent_mean_is_not_the_best() -> None:
    falling = {0: curve(range(1, 21), *([500] * 18 + [100, 50] for _ in range(3)))}
    arms = ARMS | {"attack=huge,attackers=1": falling}
    found = scores(run_of(arms), at=0.2)["huge", 1]
    assert (found.best.mean, found.recent.mean) == (500, 75)


def test_what_was_not_run_has_no_share() -> None:
    without = {arm: found for arm, found in ARMS.items() if arm.startswith("attack")}
    score = scores(run_of(without))["noise", 1]
    assert (score.clean, score.alone, score.share, score.withstood) == (None, None, None, True)
    below_zero = ARMS | {"fedhql": seeds([-100, -200, 300], [-300, -400, 300])}
    assert scores(run_of(below_zero))["noise", 1].share is None


def test_a_run_whose_settings_name_attackers() -> None:
    attacked = settings(agents=3) | {"attack": {"name": "noise", "attackers": 1}}
    run = run_of(
        {
            "independent": ARMS["independent"],
            "fedhql": ARMS["fedhql"],
            "attackers=2": seeds([1] * 3),
        },
        settings_=attacked,
    )
    assert [run.attack(arm) for arm in run.arms] == [None, ("noise", 1), ("noise", 2)]
    assert run.label("fedhql") == "FedHQL, λ = 1, 1 × noise"
    assert run.exploration("fedhql") is None
    found = scores(run)
    assert found["noise", 1].clean is None
    assert found["noise", 1].best.mean == (100 + 200 + 300 + 400) / 4


def test_attacked_arms_are_not_held_against_the_paper() -> None:
    attacked = read_settings(preset_text("cartpole-n5")).model_dump(mode="json")
    arms = {"fedhql": seeds([500] * 5), "independent": seeds([10] * 5)}
    clean = check_claims([run_of(arms, settings_=attacked)], np.random.default_rng(0))
    assert len(clean) == 6
    attacked |= {"attack": {"name": "noise", "attackers": 1}}
    assert check_claims([run_of(arms, settings_=attacked)], np.random.default_rng(0)) == []


def test_a_table_for_each_number_of_attackers() -> None:
    mean_std = run_of(ARMS, "paper")
    trimmed = run_of(
        {arm: ARMS[arm] for arm in ("fedhql", "attack=noise,attackers=1")},
        "cut",
        settings_=settings(agents=3, rule="trimmed", trim=1.0),
    )
    found = attack_scores([mean_std, trimmed], at=1.0, level=0.5)
    one, two = attack_tables(found, 0.5)
    assert (one.title, two.title) == ("1 attacker", "2 attackers")
    assert "at 100 env steps per agent" in one.note
    assert one.header == ("rule", "alone", "nobody lies", "noise")
    assert one.rows == [
        ("mean-std", "25 [25, 25]", "250 [150, 350] / 250", "225 [135, 315] / 225 (90%)"),
        ("trimmed, trim = 1", "-", "250 [150, 350] / 250", "225 [135, 315] / 225 (90%)"),
    ]
    assert two.header[3:] == ("nan", "noise")
    (row,) = two.rows
    assert row[3] == "30 [1 seed] / 30 (30%) ▼"
    assert row[4].endswith("(95%)")
    lines = list(csv.DictReader(StringIO(attack_csv(found))))
    assert [(line["run"], line["attack"], line["attackers"]) for line in lines] == [
        ("paper", "nan", "2"),
        ("paper", "noise", "1"),
        ("paper", "noise", "2"),
        ("cut", "noise", "1"),
    ]
    assert (lines[1]["best"], lines[1]["best_low"], lines[1]["share_of_clean"]) == (
        "225",
        "135",
        "0.9",
    )
    assert (lines[3]["alone_best"], lines[3]["clean_best"]) == ("", "250")


def test_two_runs_of_one_rule_are_told_apart() -> None:
    found = attack_scores([run_of(ARMS, "one"), run_of(ARMS, "other")], at=1.0, level=0.5)
    first, _ = attack_tables(found, 0.5)
    assert [row[0] for row in first.rows] == ["one: mean-std", "other: mean-std"]


def test_the_clean_arms_last_tenth_stands_beside_its_best() -> None:
    """Of the honest agents: the third lies in the other arm."""
    fallen = {0: curve([BUDGET / 2, BUDGET], [300, 200], [300, 100], [999, 999])}
    found = scores(run_of({"fedhql": fallen, "attack=noise,attackers=1": fallen}))
    score = found["noise", 1]
    assert score.clean_recent == 150
    (table,) = attack_tables([score], 0.5)
    assert table.rows[0][2] == "300 [1 seed] / 150"
    (line,) = csv.DictReader(StringIO(attack_csv([score])))
    assert (line["clean_best"], line["clean_recent"]) == ("300", "150")


def test_small_returns_have_digits_everywhere() -> None:
    small = run_of({"fedhql": {0: curve([BUDGET], [0.3], [0.3], [0.3])}})
    (row,) = scores_table(small, 0.5).rows
    assert row[2:4] == ("0.3 [1 seed]", "0.3")


def test_a_report_has_them_where_there_are_attacks(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    page, text, table = write_report([run_of(ARMS)], tmp_path / "report", rng, level=0.8)
    assert table.name == "report-attacks.csv"
    for written in (page, text):
        assert "2 attackers" in written.read_text()
        assert "(30%) ▼" in written.read_text()
    figures = draw_figures([run_of(ARMS)], tmp_path / "figures", rng)
    assert "attacks.png" in [path.name for path in figures]
    clean = run_of({arm: ARMS[arm] for arm in ("independent", "fedhql")})
    assert len(write_report([clean], tmp_path / "clean", rng, level=0.8)) == 2
    assert "attacks.png" not in [p.name for p in draw_figures([clean], tmp_path / "other", rng)]


def test_the_figure_says_every_share() -> None:
    found = attack_scores([run_of(ARMS)], at=1.0, level=0.5)
    figure = attacks_figure(found)
    told = {axes.get_title(): [t.get_text() for t in axes.texts] for axes in figure.axes[:2]}
    assert told == {"1 attacker": ["90%\n225"], "2 attackers": ["30%\n30", "95%\n189.5"]}


def test_thirteen_arms_look_thirteen_ways() -> None:
    names = ("a", "b", "c", "d", "e", "f")
    arms = {f"attack={name},attackers={k}": ARMS["fedhql"] for name in names for k in (1, 2)}
    chosen = styles([run_of(ARMS | arms)])
    assert len({str(style) for style in chosen.values()}) == len(chosen) > 13


def test_an_arm_that_changes_the_rule_is_named_by_its_own() -> None:
    trimmed = settings(agents=3)
    trimmed["federation"] |= {"rule": "trimmed", "trim": 1.0}
    lies = "attack=noise,attackers=1"
    arms = {f"{own}{lies}": ARMS["fedhql"] for own in ("", "rule=hampel,", "trim=0.4,", "bound=2,")}
    found = attack_scores([run_of(arms, settings_=trimmed)], at=1.0, level=0.5)
    assert {score.rule for score in found} == {
        "trimmed, trim = 1",
        "hampel",
        "trimmed, trim = 0.4",
        "trimmed, trim = 1, b = 2",
    }

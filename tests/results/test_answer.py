"""What a report opens with, by hand."""

from dataclasses import replace

import pytest

from fedhql.results.answer import answer, gains
from fedhql.results.curves import Arms, Curve
from fedhql.results.panels import gains_panel
from tests.results.handmade import curve, learning_run, run_of


def seeds(*best_and_recent: tuple[float, float]) -> dict[int, Curve]:
    """A seed each of two agents that both have this best and this last evaluation."""
    return {
        seed: curve([20, 100], [best, recent], [best, recent])
        for seed, (best, recent) in enumerate(best_and_recent)
    }


ALONE = seeds((100, 10), (110, 20), (120, 30))


def test_gains_by_hand() -> None:
    ours = seeds((140, 10), (150, 22), (163, 31))
    (gain,) = gains(run_of({"independent": ALONE, "fedhql": ours}), 0.95)
    assert (gain.arm, gain.seeds, gain.consumed) == ("fedhql", 3, 100)
    # 40, 40, 43: standard deviation sqrt(3), times 4.303 / sqrt(3). 0, 2, 1: times 1 / sqrt(3).
    best = (gain.best.mean, gain.best.low, gain.best.high)
    assert best == pytest.approx((41, 41 - 4.303, 41 + 4.303), abs=1e-3)
    recent = (gain.recent.mean, gain.recent.low, gain.recent.high)
    assert recent == pytest.approx((1, 1 - 2.484, 1 + 2.484), abs=1e-3)


@pytest.mark.parametrize(
    ("ours", "told"),
    [
        ([(140, 10), (150, 22), (163, 31)], "is above DQN alone by 41 [37, 45] in max mean return"),
        ([(60, 10), (70, 20), (77, 30)], "is below DQN alone by 41 [37, 45] in max mean return"),
        (
            [(90, 0), (110, 0), (114, 0)],
            "is not shown to differ from DQN alone: a gain of -5 [-18, 7] in max",
        ),
        (
            [(130, 0), (110, 0), (126, 0)],
            "is not shown to differ from DQN alone: a gain of 12 [-27, 51] in max",
        ),
    ],
)
def test_the_words(ours: list[tuple[float, float]], told: str) -> None:
    text = answer(run_of({"independent": ALONE, "fedhql": seeds(*ours)}), 0.95)
    assert text.startswith(f"FedHQL, λ = 1 {told}")
    assert "(95% t-interval, 3 seeds, at 100 env steps per agent, the server's share incl" in text


def test_the_last_tenth_is_told_beside_the_maximum() -> None:
    ours = seeds((140, 9.1), (150, 19), (163, 28.9))
    text = answer(run_of({"independent": ALONE, "fedhql": ours}))
    assert "FedHQL, λ = 1 is above DQN alone by 41 [37, 45]" in text
    assert text.endswith("10 % of evaluations it is below DQN alone by 1 [0.752, 1.25].")


def test_a_few_equal_seeds_are_no_evidence() -> None:
    """With 3 seeds the sign test has p = 0.25; 6 equal seeds show a difference."""
    few = run_of({"independent": ALONE, "fedhql": seeds((140, 10), (150, 20), (160, 30))})
    assert answer(few).startswith(
        "FedHQL, λ = 1 is not shown to differ from DQN alone: a gain of 40 [3 equal seeds] in max"
    )
    assert answer(few).endswith("not shown to differ from DQN alone: a gain of 0 [3 equal seeds].")
    six = run_of({"independent": seeds(*[(1, 1)] * 6), "fedhql": seeds(*[(2, 1)] * 6)})
    assert "is above DQN alone by 1 [1, 1]" in answer(six)


def test_only_what_every_seed_of_both_has_consumed_counts() -> None:
    arms: Arms = {
        "independent": {0: curve([10, 20, 30], [1, 2, 90]), 1: curve([10, 20, 30], [1, 2, 90])},
        "fedhql": {0: curve([11, 22], [5, 6]), 1: curve([11, 29], [5, 90]), 2: curve([1], [9])},
    }
    (gain,) = gains(run_of(arms))
    assert (gain.seeds, gain.consumed) == (2, 22)
    # At 22: seed 0 has 6 - 2, seed 1 has 5 - 2.
    assert gain.best.mean == 3.5


def test_one_seed_asks_for_more() -> None:
    text = answer(run_of({"independent": seeds((1, 1)), "fedhql": seeds((42, 1))}))
    assert text.startswith("FedHQL, λ = 1 minus DQN alone: +41 in max mean return")
    assert text.endswith("One seed cannot show a difference: run more, such as seeds 0 to 4.")


@pytest.mark.parametrize("arms", [{"fedhql": ALONE}, {"independent": ALONE}, {}])
def test_nothing_to_compare_says_what_to_run(arms: Arms) -> None:
    told = answer(run_of(arms))
    assert told.endswith("or run the arms independent and fedhql with the same seeds.")


@pytest.mark.parametrize(
    ("arm", "told"),
    [
        (
            "independent",
            "Only agents alone were run. For a comparison, also run the arm fedhql with the same "
            "seeds.",
        ),
        (
            "fedhql",
            "No agents alone were run. For a comparison, also run the arm independent with the "
            "same seeds.",
        ),
    ],
)
def test_a_run_of_one_arm_says_which_is_missing(arm: str, told: str) -> None:
    run = replace(run_of({arm: ALONE}), manifest={"arms": [arm], "seeds": [0, 1, 2]})
    assert answer(run) == told


def test_the_answer_is_about_the_settings_own_federation() -> None:
    better = seeds((500, 500), (511, 500), (521, 500))
    arms: Arms = {
        "independent": ALONE,
        "exploration=0": better,
        "attack=noise,attackers=1": better,
        "fedhql": seeds((140, 10), (150, 20), (163, 30)),
    }
    assert answer(run_of(arms)).startswith("FedHQL, λ = 1 is above DQN alone by 41 [37, 45]")
    assert [gain.arm for gain in gains(run_of(arms))] == ["exploration=0", "fedhql"]
    del arms["fedhql"]
    assert answer(run_of(arms)).startswith("FedHQL, λ = 0 is above")


def test_the_picture_has_a_row_for_each_arm() -> None:
    runs = [learning_run(name="a"), learning_run(name="b", arms=["independent", "fedhql"])]
    panel = gains_panel(runs, 0.95)
    assert panel["layout"]["yaxis"]["ticktext"] == [
        "a: FedHQL, λ = 0",
        "a: FedHQL, λ = 1",
        "b: FedHQL, λ = 1",
    ]
    assert panel["layout"]["yaxis"]["tickvals"] == [2, 1, 0]
    best, recent = panel["traces"]
    assert best["x"] == [gain.best.mean for run in runs for gain in gains(run)]
    assert recent["y"] == pytest.approx([1.85, 0.85, -0.15])
    lonely = gains_panel([learning_run(seeds=1)], 0.95)
    assert lonely["traces"][0]["error_x"]["array"] == [None, None]

"""docs/hospitals.md says what the committed archives of its experiments say."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from examples.hospitals.clinic import always, treat
from examples.hospitals.hiv import log_reward
from examples.hospitals.pictures import returns_by_arm
from fedhql.results.load import load_run
from fedhql.results.statistics import t_interval
from fedhql.settings.experiment import read_settings_file

ROOT = Path(__file__).parents[2]
PAGE, DOCS = ROOT / "docs/hospitals.md", ROOT / "docs"
# The archive, its experiment, its seeds, and what the page compares with hospitals alone.
STUDIES = [
    ("hospitals-fresh", "consensus.toml", range(30, 50), "consensus"),
    ("hospitals", "hospitals.toml", range(10), "federated"),
]
HOSPITALS = ("north", "east", "south", "west", "harbour")
HEALTHY = (967_839, 621, 76, 6, 415, 353_108)


def row(name: str, alone_S: NDArray[np.float64], federated_S: NDArray[np.float64]) -> str:
    low, high = t_interval(federated_S - alone_S)
    means = f"{alone_S.mean():.0f} | {federated_S.mean():.0f}"
    return f"| {name} | {means} | {(low + high) / 2:+.0f} ± {(high - low) / 2:.0f} |"


@pytest.mark.parametrize(("archive", "_", "seeds", "word"), STUDIES)
def test_the_table_is_the_archive(archive: str, _: str, seeds: range, word: str) -> None:
    returns = returns_by_arm(DOCS / archive)
    lines = PAGE.read_text().splitlines()
    for name, of in returns.items():
        assert row(name, of["alone"], of[word]) in lines
    alone_S, other_S = (
        np.mean([of[each] for of in returns.values()], axis=0) for each in ("alone", word)
    )
    assert len(alone_S) == len(seeds)
    assert row("**mean of the five**", alone_S, other_S) in lines


def test_the_cases_that_restore_the_immune_response_are_counted() -> None:
    text = " ".join(PAGE.read_text().split())
    together, rounds = (returns_by_arm(DOCS / archive) for archive, *_ in STUDIES)
    alone, in_rounds = (
        sum(int((of[word] > 500).sum()) for of in rounds.values())
        for word in ("alone", "federated")
    )
    assert f"have it in {alone} of 50 cases, and federated in {in_rounds}." in text
    own = sum(int((of["alone"] > 500).sum()) for of in together.values())
    consensus = int((together["north"]["consensus"] > 500).sum())
    assert f"have it in {own} of 100 cases, and the consensus in {consensus} of 20 seeds." in text


def test_who_gains_by_treating_together_is_as_said() -> None:
    text = " ".join(PAGE.read_text().split())
    returns = returns_by_arm(DOCS / "hospitals-fresh")
    gains_NS = np.array([of["consensus"] - of["alone"] for of in returns.values()])
    of_seeds = dict(zip(range(30, 50), gains_NS.mean(axis=0), strict=True))
    worst, bad, *others = sorted(of_seeds, key=lambda seed: of_seeds[seed])
    assert (
        f"gains between {of_seeds[others[0]]:.0f} and {of_seeds[others[-1]]:.0f} in 18 seeds. It "
        f"loses {-of_seeds[worst]:.0f} in seed {worst} and {-of_seeds[bad]:.0f} in seed {bad}"
        in text
    )
    for seed in (worst, bad):  # "although three hospitals do"
        assert sum(of["alone"][seed - 30] > 500 for of in returns.values()) == 3
        assert returns["north"]["consensus"][seed - 30] < 500
    assert (returns["west"]["consensus"] > returns["west"]["alone"]).all()


def alone_and_best(archive: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean of hospitals alone, and the return of the best hospital's policy, by seed.

    It is the best by its own evaluations during learning, which hospitals know.
    """
    run, returns = load_run(DOCS / archive), returns_by_arm(DOCS / archive)
    alone_SN = np.array([of["alone"] for of in returns.values()]).T
    picked_S = [int(curve.max_mean().argmax()) for curve in run.arms["independent"].values()]
    return alone_SN.mean(axis=1), alone_SN[np.arange(len(alone_SN)), picked_S]


def test_what_the_best_hospital_s_policy_would_give_is_as_said() -> None:
    text = " ".join(PAGE.read_text().split())
    returns = returns_by_arm(DOCS / "hospitals-fresh")
    alone_S, best_S = alone_and_best("hospitals-fresh")
    consensus_S = returns["north"]["consensus"]
    assert f"It is {best_S.mean():.0f} if all use the policy of the hospital whose own" in text
    of_ten_S = np.subtract(*reversed(alone_and_best("hospitals-consensus")))
    for said, gains_S in (
        ("are best: +", best_S - alone_S),
        ("consensus by ", best_S - consensus_S),
        ("too: it is +", (best_S - alone_S)[:10]),
        ("and +", of_ten_S),
    ):
        low, high = t_interval(gains_S)
        gain = f"{said}{(low + high) / 2:.0f} ± {(high - low) / 2:.0f}"
        assert re.search(rf"{re.escape(gain)}\b", text), gain
    assert len(of_ten_S) == 10
    assert (best_S > 500).all()  # "restores the immune response in all 20 seeds"
    assert (returns["north"]["alone"] > consensus_S).sum() == 17  # "is worse off in 17 of 20"


@pytest.mark.parametrize(
    ("archive", "seeds"), [("hospitals-consensus", slice(None)), ("hospitals-fresh", slice(10))]
)
def test_gains_over_ten_seeds_are_as_said(archive: str, seeds: slice) -> None:
    returns = returns_by_arm(DOCS / archive)
    gains_S = np.mean([of["consensus"] - of["alone"] for of in returns.values()], axis=0)[seeds]
    low, high = t_interval(gains_S)
    assert len(gains_S) == 10
    assert f": {(low + high) / 2:+.0f} ± {(high - low) / 2:.0f}." in " ".join(
        PAGE.read_text().split()
    )


@pytest.mark.parametrize(("archive", "experiment", "seeds", "_"), STUDIES)
def test_the_archive_is_of_the_experiment_in_the_examples(
    archive: str, experiment: str, seeds: range, _: str
) -> None:
    run = load_run(DOCS / archive)
    now = read_settings_file(ROOT / "examples/hospitals" / experiment, [])
    assert read_settings_file(DOCS / archive / "settings.toml", []) == now
    assert run.manifest["seeds"] == list(seeds)


@pytest.mark.parametrize(
    "picture",
    [
        "hospitals-fresh/gain.png",
        "hospitals-consensus/courses.png",
        "hospitals/gain.png",
        "hospitals/courses.png",
    ],
)
def test_the_pictures_are_there(picture: str) -> None:
    assert f"({picture})" in PAGE.read_text()
    assert (DOCS / picture).read_bytes().startswith(b"\x89PNG")


def test_the_search_is_its_file() -> None:
    found: dict[tuple[str, str], dict[str, float]] = {}
    with (DOCS / "hospitals/search.csv").open() as file:
        for each in csv.DictReader(file):
            assert int(each["seed"]) >= 100
            mean = np.mean([float(each[name]) for name in HOSPITALS])
            found.setdefault((each["set"], each["try"]), {})[each["seed"]] = float(mean)
    lines = PAGE.read_text().splitlines()
    for (group, name), by_seed in found.items():
        cells = [group, name, str(len(by_seed)), f"{np.mean(list(by_seed.values())):.0f}"]
        if name != "alone":
            low, high = t_interval(
                np.array([value - found[group, "alone"][seed] for seed, value in by_seed.items()])
            )
            cells.append(f"{(low + high) / 2:+.0f} ± {(high - low) / 2:.0f}")
            assert f"| {' | '.join(cells)} |" in lines
        else:
            assert f"| {' | '.join(cells)} | |" in lines


def test_returns_of_simple_policies_are_as_said() -> None:
    text = " ".join(PAGE.read_text().split())
    none, both = (treat(always(action), 20, seed=0).returns_P.mean() for action in (0, 3))
    healthy = 200 * float(log_reward(HEALTHY, 0.0, 0.0))
    said = re.search(r"no drug returns (\d+), one who is always given both drugs (\d+)", text)
    assert said is not None
    assert [round(none), round(both)] == [int(number) for number in said.groups()]
    assert f"one in the healthy state from the first day {healthy:.0f}." in text

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
# The archive, its experiment, and what the page compares with hospitals alone.
STUDIES = [
    ("hospitals-consensus", "consensus.toml", "consensus"),
    ("hospitals", "hospitals.toml", "federated"),
]
HOSPITALS = ("north", "east", "south", "west", "harbour")
HEALTHY = (967_839, 621, 76, 6, 415, 353_108)


def row(name: str, alone_S: NDArray[np.float64], federated_S: NDArray[np.float64]) -> str:
    low, high = t_interval(federated_S - alone_S)
    means = f"{alone_S.mean():.0f} | {federated_S.mean():.0f}"
    return f"| {name} | {means} | {(low + high) / 2:+.0f} ± {(high - low) / 2:.0f} |"


@pytest.mark.parametrize(("archive", "_", "word"), STUDIES)
def test_the_table_is_the_archive(archive: str, _: str, word: str) -> None:
    returns = returns_by_arm(DOCS / archive)
    lines = PAGE.read_text().splitlines()
    for name, of in returns.items():
        assert row(name, of["alone"], of[word]) in lines
    alone_S, other_S = (
        np.mean([of[each] for of in returns.values()], axis=0) for each in ("alone", word)
    )
    assert len(alone_S) == 10
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
    assert f"have it in {own} of 50 cases, and the consensus in {consensus} of 10 seeds." in text


def test_who_gains_by_treating_together_is_as_said() -> None:
    text = " ".join(PAGE.read_text().split())
    returns = returns_by_arm(DOCS / "hospitals-consensus")
    gains_NS = np.array([of["consensus"] - of["alone"] for of in returns.values()])
    *others, least = sorted(gains_NS.mean(axis=0), reverse=True)
    assert least == gains_NS.mean(axis=0)[9]
    assert (
        f"gains between {others[-1]:.0f} and {others[0]:.0f} in nine seeds, and loses "
        f"{-least:.0f} in seed 9." in text
    )
    alone_N = [of["alone"][9] for of in returns.values()]
    assert sum(value > 500 for value in alone_N) == 3  # "although three hospitals do"
    gains_of = dict(zip(returns, gains_NS, strict=True))
    assert (gains_of["west"] > 0).all()
    assert all((gains_of[name] < 0).sum() >= 9 for name in ("north", "east"))


@pytest.mark.parametrize(("archive", "experiment", "_"), STUDIES)
def test_the_archive_is_of_the_experiment_in_the_examples(
    archive: str, experiment: str, _: str
) -> None:
    run = load_run(DOCS / archive)
    now = read_settings_file(ROOT / "examples/hospitals" / experiment, [])
    assert read_settings_file(DOCS / archive / "settings.toml", []) == now
    assert run.manifest["seeds"] == list(range(10))


@pytest.mark.parametrize(("archive", "_", "__"), STUDIES)
@pytest.mark.parametrize("picture", ["gain.png", "courses.png"])
def test_the_pictures_are_there(archive: str, picture: str, _: str, __: str) -> None:
    assert f"({archive}/{picture})" in PAGE.read_text()
    assert (DOCS / archive / picture).read_bytes().startswith(b"\x89PNG")


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

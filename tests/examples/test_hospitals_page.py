"""docs/hospitals.md says what the committed archive of its experiment says."""

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
PAGE, ARCHIVE = ROOT / "docs/hospitals.md", ROOT / "docs/hospitals"
HEALTHY = (967_839, 621, 76, 6, 415, 353_108)


def row(name: str, alone_S: NDArray[np.float64], federated_S: NDArray[np.float64]) -> str:
    low, high = t_interval(federated_S - alone_S)
    means = f"{alone_S.mean():.0f} | {federated_S.mean():.0f}"
    return f"| {name} | {means} | {(low + high) / 2:+.0f} ± {(high - low) / 2:.0f} |"


def test_the_table_is_the_archive() -> None:
    returns = returns_by_arm(ARCHIVE)
    lines = PAGE.read_text().splitlines()
    for name, of in returns.items():
        assert row(name, of["alone"], of["federated"]) in lines
    of_all = {
        word: np.mean([of[word] for of in returns.values()], axis=0)
        for word in ("alone", "federated")
    }
    assert len(of_all["alone"]) == 10
    assert row("**mean of the five**", of_all["alone"], of_all["federated"]) in lines
    high = {word: sum(int((of[word] > 500).sum()) for of in returns.values()) for word in of_all}
    assert (
        f"Alone, the five hospitals have it in {high['alone']} of 50 cases, and federated in "
        f"{high['federated']}." in " ".join(lines)
    )


def test_the_archive_is_of_the_experiment_in_the_examples() -> None:
    run = load_run(ARCHIVE)
    now = read_settings_file(ROOT / "examples/hospitals/hospitals.toml", [])
    assert read_settings_file(ARCHIVE / "settings.toml", []) == now
    assert run.manifest["seeds"] == list(range(10))


@pytest.mark.parametrize("picture", ["gain.png", "courses.png"])
def test_the_pictures_are_there(picture: str) -> None:
    assert f"(hospitals/{picture})" in PAGE.read_text()
    assert (ARCHIVE / picture).read_bytes().startswith(b"\x89PNG")


def test_returns_of_simple_policies_are_as_said() -> None:
    text = " ".join(PAGE.read_text().split())
    none, both = (treat(always(action), 20, seed=0).returns_P.mean() for action in (0, 3))
    healthy = 200 * float(log_reward(HEALTHY, 0.0, 0.0))
    said = re.search(r"no drug returns (\d+), one who is always given both drugs (\d+)", text)
    assert said is not None
    assert [round(none), round(both)] == [int(number) for number in said.groups()]
    assert f"one in the healthy state from the first day {healthy:.0f}." in text

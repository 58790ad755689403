import json
from pathlib import Path

import numpy as np
import pytest

from fedhql.errors import RunDirectoryError
from fedhql.results.archive import write_archive
from fedhql.results.load import load_run, load_runs
from fedhql.storage.run_directory import Cell
from tests.results.handmade import curve, run_of

RUN = run_of(
    {
        "independent": {0: curve([20, 100], [10.125, 20], [30, -2e-7])},
        "exploration=3": {4: curve([33.5, 99.2], [1, 2], [3, 4])},
    },
    "mine",
    best_returns={Cell("exploration=3", 4): np.array([3.25, 4.0])},
)


def test_what_was_archived_is_read_like_the_run(tmp_path: Path) -> None:
    write_archive(RUN, tmp_path / "mine")
    read = load_run(tmp_path / "mine")
    assert (read.name, read.settings, list(read.arms)) == ("mine", RUN.settings, list(RUN.arms))
    for arm, seeds in RUN.arms.items():
        for seed, kept in seeds.items():
            np.testing.assert_array_equal(read.arms[arm][seed].consumed_E, kept.consumed_E)
            np.testing.assert_array_equal(read.arms[arm][seed].returns_NE, kept.returns_NE)
    (cell,) = read.best_returns
    assert read.best_returns[cell].tolist() == [3.25, 4.0]


def test_nothing_about_the_machine_is_archived(tmp_path: Path) -> None:
    RUN.manifest.update(command=["/home/me/fedhql"], platform="my machine", engine="compiled")
    write_archive(RUN, tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["engine"] == "compiled"
    assert not {"command", "platform", "sessions"} & manifest.keys()


def test_a_folder_of_runs_is_a_suite(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_archive(RUN, tmp_path / name)
    (tmp_path / "figures").mkdir()
    assert [run.name for run in load_runs(tmp_path)] == ["a", "b"]
    assert [run.name for run in load_runs(tmp_path / "b")] == ["b"]
    assert [run.name for run in load_runs(tmp_path / "b", tmp_path)] == ["b", "a"]
    with pytest.raises(RunDirectoryError, match="holds no run of fedhql"):
        load_runs(tmp_path / "figures")


def test_runs_of_a_suite_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("cartpole-n10", "cartpole-n5", "acrobot"):
        write_archive(RUN, tmp_path / name)
    names = [run.name for run in load_runs(tmp_path)]
    assert names == ["acrobot", "cartpole-n5", "cartpole-n10"]

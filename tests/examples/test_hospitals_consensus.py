"""The hospitals' experiments run with a small budget, from learning to their pictures."""

import re
from pathlib import Path

import numpy as np
import pytest

from examples.hospitals import consensus, pictures
from examples.hospitals.clinic import always, together, treat
from examples.hospitals.values import main as print_values
from fedhql.acting import GreedyAnswer, PolicyFunction
from fedhql.contract import States
from fedhql.storage.run_directory import Cell
from tests.cli.running import succeed

EXAMPLE = Path(__file__).parents[2] / "examples" / "hospitals"


def run_small(experiment: str, run: Path, *options: str) -> None:
    pytest.importorskip("sb3_contrib", reason="needs sb3-contrib: pip install 'fedhql[sb3]'")
    small = (
        "federation.self_learning_env_steps=210",
        "evaluation.interval_env_steps=210",
        "evaluation.episodes=1",
        "evaluation.best_episodes=1",
        "agents.4.n_steps=100",
    )
    settings = [option for change in small for option in ("--set", change)]
    succeed("run", experiment, "--out", run, "--no-figures", *options, *settings, cwd=EXAMPLE)


def test_hospitals_learn_alone_and_treat_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.setattr(consensus, "PATIENTS", 2)
    run, archive = tmp_path / "hospitals", tmp_path / "archive"
    run_small("consensus.toml", run, "--arm", "independent", "--seeds", "0,1", "--budget", "210")
    succeed("archive", run, "--out", archive, cwd=tmp_path)
    home = archive / "hospitals"
    consensus.main(run, home)
    found = consensus.read_consensus(home)
    assert set(found) == {Cell("independent", 0), Cell("independent", 1)}
    assert all(50 < each < 1_000 for each in found.values())
    pictures.main(run, home)
    returns = pictures.returns_by_arm(home)
    assert list(returns) == ["north", "east", "south", "west", "harbour"]
    for of in returns.values():
        assert list(of) == ["alone", "consensus"]
        np.testing.assert_array_equal(of["consensus"], list(found.values()))
    assert (home / "courses.png").stat().st_size > 10_000


def test_hospitals_learn_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    run, archive = tmp_path / "hospitals", tmp_path / "archive"
    run_small("hospitals.toml", run, "--budget", "230")  # a phase, and the steps of one round
    assert len((run / "federation.csv").read_text().splitlines()) == 2  # its head, and one round
    succeed("archive", run, "--out", archive, cwd=tmp_path)
    returns = pictures.returns_by_arm(archive / "hospitals")
    assert all(list(of) == ["alone", "federated"] for of in returns.values())
    capsys.readouterr()
    print_values(run)
    assert re.fullmatch(
        r"hospitals: [\d.]+, from .*\nbest and second treatment: [\d.]+, from .*\n",
        capsys.readouterr().out,
    )


def preferring(values: list[float]) -> PolicyFunction:
    """Return a policy of these values at every state, which never acts on them."""

    def answer(states: States) -> GreedyAnswer:
        rows = np.tile(np.array(values, dtype=np.float32), (len(states), 1))
        return GreedyAnswer(rows, np.zeros(len(states), dtype=np.int64))

    return answer


def test_a_consensus_takes_the_treatment_with_the_largest_mean() -> None:
    policies = [preferring([5, 0, 0, 4]), preferring([0, 5, 0, 4]), preferring([0, 0, 5, 4])]
    courses = treat(together(policies), 1, seed=3)
    np.testing.assert_array_equal(courses.returns_P, treat(always(3), 1, seed=3).returns_P)
    assert (courses.actions_PT == 3).all()

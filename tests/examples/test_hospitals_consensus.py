"""The hospitals' experiment runs with a small budget, from learning to the consensus' pictures."""

from pathlib import Path

import numpy as np
import pytest

from examples.hospitals import consensus, pictures
from examples.hospitals.clinic import always, together, treat
from fedhql.acting import GreedyAnswer, PolicyFunction
from fedhql.contract import States
from fedhql.storage.run_directory import Cell
from tests.cli.running import succeed

EXAMPLE = Path(__file__).parents[2] / "examples" / "hospitals"


def test_hospitals_learn_alone_and_treat_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sb3_contrib", reason="needs sb3-contrib: pip install 'fedhql[sb3]'")
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.setattr(consensus, "PATIENTS", 2)
    run, archive = tmp_path / "hospitals", tmp_path / "archive"
    small = (
        "federation.self_learning_env_steps=210",
        "evaluation.interval_env_steps=210",
        "evaluation.episodes=1",
        "evaluation.best_episodes=1",
    )
    settings = [option for change in small for option in ("--set", change)]
    succeed(
        "run", "consensus.toml", "--out", run, "--arm", "independent", "--seeds", "0,1",
        "--budget", "210", "--no-figures", "--set", "agents.4.n_steps=100", *settings,
        cwd=EXAMPLE,
    )  # fmt: skip
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

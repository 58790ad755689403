"""The example of a federation of unlike agents runs."""

import csv
from pathlib import Path

import pytest

from tests.cli.running import succeed

EXAMPLE = Path(__file__).parents[2] / "examples" / "mixed_kinds.toml"


def test_five_kinds_federate(tmp_path: Path) -> None:
    pytest.importorskip("sb3_contrib", reason="needs sb3-contrib: pip install 'fedhql[sb3]'")
    changes = (
        "federation.self_learning_env_steps=64",
        "federation.query_batch=5",
        "federation.horizon_steps=2",
        "evaluation.interval_env_steps=66",
        "evaluation.episodes=1",
        "evaluation.best_episodes=1",
        "agents.4.n_steps=64",
    )
    settings = [option for change in changes for option in ("--set", change)]
    output = succeed(
        "run", EXAMPLE, "--out", "run", "--budget", "132", "--no-figures", *settings, cwd=tmp_path
    )
    names = ["dqn", "linear", "qrdqn", "ppo", "a2c"]
    assert all(name in output for name in names)
    rows = rows_of(tmp_path / "run" / "evaluations.csv")
    assert {row["agent"] for row in rows if row["arm"] == "fedhql"} == {*names, "consensus"}
    assert len(rows_of(tmp_path / "run" / "federation.csv")) == 2


def rows_of(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(file.read_text().splitlines()))

from pathlib import Path

import numpy as np
import pytest

from fedhql.engines.cell_records import CellRecords
from fedhql.engines.evaluation import Evaluation
from fedhql.errors import RunDirectoryError
from fedhql.settings.experiment import read_settings
from fedhql.storage.records import ROUND, SELF_LEARNING
from fedhql.storage.run_directory import Cell, RunDirectory
from fedhql.storage.tracking import Tracking

SETTINGS = read_settings("""
[environment]
id = "FrozenLake-v1"
[budget]
env_steps_per_agent = 100
[evaluation]
moments = "both"
[[agents]]
kind = "tabular"
""")


def records(home: Path, state: dict[str, object] | None = None) -> CellRecords:
    return CellRecords(
        SETTINGS,
        Cell("fedhql", 0),
        RunDirectory(home),
        report=lambda progress: None,
        clock=lambda: 0.0,
        tracking=Tracking(()),
        state=state,
    )


def with_mean(value: float) -> Evaluation:
    """Return an evaluation of the agent and of the consensus policy."""
    return Evaluation(*np.full((4, 2, 1), value))


def test_one_moment_chooses_the_best_state(tmp_path: Path) -> None:
    """Federated arms would otherwise choose from twice as many evaluations as agents alone."""
    mine = records(tmp_path)
    assert mine.evaluated(SELF_LEARNING, with_mean(1), [{}]) == [0]
    assert mine.evaluated(ROUND, with_mean(9), [{}]) == []
    assert mine.evaluated(SELF_LEARNING, with_mean(2), [{}]) == [0]
    assert mine.evaluated(SELF_LEARNING, with_mean(2), [{}]) == []
    mine.close()


def test_a_checkpoint_of_an_older_version_is_refused(tmp_path: Path) -> None:
    state: dict[str, object] = {"round": 3, "best": {"agent1": 5.0}}
    with pytest.raises(RunDirectoryError, match=r"older version .* or give another directory"):
        records(tmp_path, state)

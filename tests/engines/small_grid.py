"""A small experiment as a grid: run it, interrupt it, read what it wrote."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fedhql.engines.cell_records import Progress
from fedhql.engines.grid_run import finish_grid
from fedhql.settings.experiment import read_settings
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.arm_names import CONTROLS
from fedhql.storage.run_directory import Cell, RunDirectory

SETTINGS = read_settings("""
[environment]
id = "CartPole-v1"
[federation]
query_batch = 4
horizon_steps = 5
self_learning_env_steps = 40
[budget]
env_steps_per_agent = 130
[evaluation]
episodes = 2
interval_env_steps = 30
moments = "both"
[[agents]]
learning_rate = 0.01
[[agents]]
learning_rate = 0.03
exploration_final_eps = 0.2
""", [f"agents.{setting}" for setting in (
    "hidden=[8]", "train_freq=1", "learning_starts=10", "batch_size=8", "improvement_steps=4",
    "target_update_interval=15",
)])  # fmt: skip
PUBLIC = CONTROLS["public-states"]
FALLING = "random_actions=0.8,random_actions_env_steps=100"
# Federated lanes pay for the server, so they have fewer own steps and end before the last lane.
CELLS = [Cell(arm, 0) for arm in ("fedhql", FALLING, PUBLIC, "independent")]
RECORDS = ("evaluations.csv", "federation.csv")


class Interrupted(Exception):
    pass


def finish(
    home: Path,
    cells: Sequence[Cell] = CELLS,
    report: Callable[[Progress], None] = lambda progress: None,
    clock: Callable[[], float] = lambda: 0.0,
    settings: ExperimentSettings = SETTINGS,
) -> Path:
    """Run a grid. With the default clock, checkpoints take no time and are due every round."""
    directory = RunDirectory(home)
    finish_grid(
        settings,
        cells,
        directory,
        directory.grids() / "0",
        report=report,
        clock=clock,
        track=(),
    )
    return home


def interrupted(
    home: Path,
    reports: int,
    settings: ExperimentSettings = SETTINGS,
    cells: Sequence[Cell] = CELLS,
) -> Path:
    """Run a grid and stop it after this number of reports."""
    with pytest.raises(Interrupted):
        finish(home, cells, stopping(reports), settings=settings)
    return home


def stopping(reports: int) -> Callable[[Progress], None]:
    """Return a function that raises Interrupted after this number of calls."""
    left = iter(range(reports))

    def report(progress: Progress) -> None:
        if next(left, None) is None:
            raise Interrupted

    return report


def contents(home: Path) -> dict[str, bytes]:
    """Return the files with rows and policies, without those about timing."""
    kept = (*RECORDS, "parameters.npz", "network.json")
    found = (path for path in home.rglob("*") if path.name in kept)
    return {str(path.relative_to(home)): path.read_bytes() for path in found}

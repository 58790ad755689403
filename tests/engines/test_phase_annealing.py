"""Agents that anneal ε in each self-learning phase, learn from the first step and use SGD.

Both engines run them alike, also after an interruption and in an arm with phases of its own length.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedhql.engines.cell_records import Progress
from fedhql.engines.cell_run import finish_cell
from fedhql.settings.experiment import read_settings
from fedhql.storage.records import EvaluationRow, read_rows
from fedhql.storage.run_directory import Cell, RunDirectory
from tests.engines.small_grid import (
    SETTINGS,
    Interrupted,
    contents,
    finish,
    interrupted,
    stopping,
)

ANNEALED = [
    "agents.exploration_fraction=0.8",
    "agents.warm_up=policy",
    "agents.learning_starts=0",
    "agents.optimizer=sgd",
]
PHASED = read_settings(SETTINGS.as_toml(), [*ANNEALED, "agents.exploration_annealing=phase"])
BUDGET = read_settings(SETTINGS.as_toml(), ANNEALED)
CELLS = [Cell("fedhql", 0), Cell("independent", 0)]
SHORT = Cell("self_learning_env_steps=24", 0)  # lanes of a grid have phases of one length


def by_messages(
    home: Path, cell: Cell, report: Callable[[Progress], None] = lambda progress: None
) -> None:
    finish_cell(
        PHASED,
        cell,
        RunDirectory(home),
        report=report,
        clock=lambda: 0.0,  # a checkpoint is due after every round
        track=(),
    )


def returns(home: Path, cell: Cell) -> list[tuple[str, int, float]]:
    rows = read_rows(RunDirectory(home).cell(cell) / "evaluations.csv", EvaluationRow)
    return [(row.agent, row.own_env_steps, row.mean_return) for row in rows]


def weights(home: Path, cell: Cell) -> list[NDArray[Any]]:
    """Return the weights of both agents' first layers at the end."""
    found = []
    for agent in ("agent1", "agent2"):
        with np.load(RunDirectory(home).agent(cell, agent) / "last" / "parameters.npz") as arrays:
            found.append(arrays["weights0"])
    return found


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finish(tmp_path_factory.mktemp("compiled"), CELLS, settings=PHASED)


@pytest.mark.parametrize("cell", [*CELLS, SHORT], ids=str)
def test_both_engines_learn_the_same(cell: Cell, compiled: Path, tmp_path: Path) -> None:
    if cell == SHORT:
        compiled = finish(tmp_path / "compiled", [cell], settings=PHASED)
    by_messages(tmp_path, cell)
    assert returns(compiled, cell) == returns(tmp_path, cell)
    for ours, theirs in zip(weights(compiled, cell), weights(tmp_path, cell), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_agents_learn_differently_if_epsilon_falls_over_the_budget(
    compiled: Path, tmp_path: Path
) -> None:
    """So a wrong period changes weights by more than rounding does."""
    finish(tmp_path, CELLS, settings=BUDGET)
    for ours, others in zip(weights(compiled, CELLS[1]), weights(tmp_path, CELLS[1]), strict=True):
        assert np.abs(ours - others).max() > 1e-4


def test_an_interrupted_grid_continues_the_same(compiled: Path, tmp_path: Path) -> None:
    home = interrupted(tmp_path, 8, PHASED, CELLS)
    assert contents(home) != contents(compiled)
    assert contents(finish(home, CELLS, settings=PHASED)) == contents(compiled)


def test_an_interrupted_cell_continues_the_same(tmp_path: Path) -> None:
    by_messages(tmp_path / "whole", CELLS[0])
    with pytest.raises(Interrupted):
        by_messages(tmp_path / "resumed", CELLS[0], stopping(6))
    assert contents(tmp_path / "resumed") != contents(tmp_path / "whole")
    by_messages(tmp_path / "resumed", CELLS[0])
    assert contents(tmp_path / "resumed") == contents(tmp_path / "whole")

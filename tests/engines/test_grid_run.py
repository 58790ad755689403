"""A grid writes the same rows and files as cell by cell, also after an interruption."""

import itertools
import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fedhql.compiled.grid import Grid
from fedhql.engines import grid_run
from fedhql.engines.build_grid import build_grid
from fedhql.engines.cell_records import Progress
from fedhql.engines.cell_run import finish_cell
from fedhql.errors import NoUsableAnswers
from fedhql.storage.records import EvaluationRow, FederationRow, read_rows
from fedhql.storage.run_directory import Cell, RunDirectory
from tests.engines.small_grid import (
    CELLS,
    FALLING,
    PUBLIC,
    RECORDS,
    SETTINGS,
    contents,
    finish,
    interrupted,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Progress]]:
    """A run without interruption, and its reports. It writes only the first checkpoint."""
    reports: list[Progress] = []
    ticks = itertools.count()
    home = tmp_path_factory.mktemp("compiled")
    return finish(home, report=reports.append, clock=lambda: float(next(ticks))), reports


@pytest.fixture(scope="module")
def compiled(whole: tuple[Path, list[Progress]]) -> Path:
    return whole[0]


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("messages")
    for cell in CELLS:
        finish_cell(
            SETTINGS,
            cell,
            RunDirectory(home),
            report=lambda progress: None,
            clock=lambda: 0.0,
            track=(),
        )
    return home


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_both_engines_write_the_same_evaluations(
    cell: Cell, compiled: Path, messages: Path
) -> None:
    """CartPole's returns are step counts, so a single different action would show."""
    ours, theirs = (
        read_rows(RunDirectory(home).cell(cell) / "evaluations.csv", EvaluationRow)
        for home in (compiled, messages)
    )
    assert len(ours) >= 5
    for mine, other in zip(ours, theirs, strict=True):
        # Sums of float32 numbers in another order
        for name in ("start_value", "discounted_return", "silent_units"):
            assert getattr(mine, name) == pytest.approx(getattr(other, name), rel=1e-4, nan_ok=True)
        assert comparable(mine) == comparable(other)


def comparable(row: EvaluationRow) -> EvaluationRow:
    return replace(row, start_value=0, discounted_return=0, silent_units=0)


@pytest.mark.parametrize("cell", CELLS[:2], ids=str)
def test_both_engines_write_the_same_federation_rows(
    cell: Cell, compiled: Path, messages: Path
) -> None:
    ours, theirs = (
        read_rows(RunDirectory(home).cell(cell) / "federation.csv", FederationRow)
        for home in (compiled, messages)
    )
    assert len(ours) >= 2
    for mine, other in zip(ours, theirs, strict=True):
        # Means of float32 numbers that are summed in another order.
        for name in ("spread", "td_error", "loss"):
            assert getattr(mine, name) == pytest.approx(getattr(other, name), rel=1e-5)
        assert replace(mine, spread=0, td_error=0, loss=0) == replace(
            other, spread=0, td_error=0, loss=0
        )


def test_both_engines_write_the_same_files(compiled: Path, messages: Path) -> None:
    def names(home: Path) -> set[str]:
        found = (str(path.relative_to(home)) for path in home.rglob("*") if path.is_file())
        return {name for name in found if not name.endswith(".lock")}

    assert names(compiled) == names(messages)
    for cell in CELLS:
        results = [
            json.loads(RunDirectory(home).result(cell).read_text()) for home in (compiled, messages)
        ]
        for key in ("round", "budget", "best", "refused_answers"):
            assert results[0][key] == results[1][key]


@pytest.mark.parametrize("cell", CELLS, ids=str)
@pytest.mark.parametrize("kept", ["best", "last"])
def test_both_engines_keep_the_same_policies(
    cell: Cell, kept: str, compiled: Path, messages: Path
) -> None:
    for agent in ("agent1", "agent2"):
        ours, theirs = (
            RunDirectory(home).agent(cell, agent) / kept for home in (compiled, messages)
        )
        assert (ours / "network.json").read_bytes() == (theirs / "network.json").read_bytes()
        with np.load(ours / "parameters.npz") as mine, np.load(theirs / "parameters.npz") as other:
            assert set(mine) == set(other) == {"weights0", "biases0", "weights1", "biases1"}
            for name in mine:
                np.testing.assert_allclose(mine[name], other[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_both_engines_write_the_same_best_returns(
    cell: Cell, compiled: Path, messages: Path
) -> None:
    ours, theirs = (RunDirectory(home).best_returns(cell) for home in (compiled, messages))
    assert list(json.loads(ours.read_text())) == ["agent1", "agent2"]
    assert ours.read_bytes() == theirs.read_bytes()


def test_each_lane_ends_when_its_budget_is_spent(compiled: Path) -> None:
    ends = {}
    for cell in CELLS:
        budget = json.loads(RunDirectory(compiled).result(cell).read_text())["budget"]
        spent = 2 * budget["own_env_steps"] + budget["server_env_steps"]
        assert 0 <= 2 * 130 - spent < 2  # less than one step of each agent
        ends[cell.arm] = budget["own_env_steps"]
    assert ends["independent"] == 130
    assert ends["fedhql"] < 130


@pytest.mark.parametrize("reports", [pytest.param(1, marks=pytest.mark.slow), 16])
def test_a_resumed_grid_writes_the_same_bytes(reports: int, compiled: Path, tmp_path: Path) -> None:
    home = interrupted(tmp_path, reports)
    assert contents(home) != contents(compiled)
    assert contents(finish(home)) == contents(compiled)


def test_a_grid_resumes_after_its_first_cell_has_finished(
    whole: tuple[Path, list[Progress]], tmp_path: Path
) -> None:
    """All lanes resume from a checkpoint that was written before the first cell ended."""
    compiled, reports = whole
    last = max(at for at, progress in enumerate(reports) if progress.cell == CELLS[0])
    home = interrupted(tmp_path, last + 1)
    finished = [cell for cell in CELLS if RunDirectory(home).result(cell).exists()]
    assert finished == CELLS[:1]
    assert contents(finish(home)) == contents(compiled)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_progress_grows_to_the_budget(cell: Cell, whole: tuple[Path, list[Progress]]) -> None:
    consumed = [progress.consumed_env_steps for progress in whole[1] if progress.cell == cell]
    assert consumed[0] == 20  # one of two agents has learned 40 steps
    assert consumed[-1] == 130
    assert consumed == sorted(consumed)


def test_a_finished_grid_is_not_run_again(compiled: Path) -> None:
    before = contents(compiled)
    reports: list[Progress] = []
    finish(compiled, report=reports.append)
    assert reports == []
    assert contents(compiled) == before


def test_a_grid_can_have_no_federated_lane(tmp_path: Path) -> None:
    cells = [Cell("independent", seed) for seed in (0, 1, 2)]
    directory = RunDirectory(finish(tmp_path, cells))
    for cell in cells:
        rows = read_rows(directory.cell(cell) / "evaluations.csv", EvaluationRow)
        assert [row.own_env_steps for row in rows[::2]] == [40, 80, 120, 120, 130]


def test_public_states_are_paid_for_once(compiled: Path) -> None:
    path = RunDirectory(compiled).cell(Cell(PUBLIC, 0)) / "federation.csv"
    first, *later = read_rows(path, FederationRow)
    assert first.round_server_env_steps == first.server_env_steps > 0
    assert {row.round_server_env_steps for row in later} == {0}
    assert len({row.server_env_steps for row in (first, *later)}) == 1


def test_every_arm_has_the_same_number_of_evaluations(compiled: Path) -> None:
    """They are due at 30, 60, 90, 120 and 130 consumed env steps."""
    for cell in CELLS:
        rows = read_rows(RunDirectory(compiled).cell(cell) / "evaluations.csv", EvaluationRow)
        moments = ["self-learning"] if cell.arm == "independent" else ["self-learning", "round"]
        agents = ["agent1", "agent2", "consensus"][: 1 + len(moments)]
        for after, agent in itertools.product(moments, agents):
            taken = [row for row in rows if (row.after, row.agent) == (after, agent)]
            assert len(taken) == 5
            for row, due in zip(taken, (30, 60, 90, 120, 129), strict=True):
                assert due <= row.budget_env_steps < due + 60  # within a phase and a round
            best = np.maximum.accumulate([row.mean_return for row in taken])
            assert [row.best_mean_return for row in taken] == best.tolist()
        assert len(rows) == 5 * len(moments) * len(agents)


@pytest.mark.parametrize("cells", [CELLS, [Cell("independent", 0)]])
def test_agents_and_consensus_that_play_together_write_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells: Sequence[Cell]
) -> None:
    in_turn = contents(finish(tmp_path / "in turn", cells))
    build = build_grid

    def build_for_gpu(*arguments: Any, **options: Any) -> Grid:
        grid = build(*arguments, **options)
        grid.plays_together = True
        return grid

    monkeypatch.setattr(grid_run, "build_grid", build_for_gpu)
    assert contents(finish(tmp_path / "together", cells)) == in_turn


def silence(monkeypatch: pytest.MonkeyPatch, lane: int, agents: Sequence[int]) -> None:
    """Set the weights of these agents to NaN."""
    build = build_grid

    def build_silent(*arguments: Any, **options: Any) -> Grid:
        grid = build(*arguments, **options)
        for agent in agents:  # each a population of its own
            learner = grid.learners[agent]
            nan = learner._replace(parameters=learner.parameters.at[lane].set(jnp.nan))
            grid._put(agent, nan)
        return grid

    monkeypatch.setattr(grid_run, "build_grid", build_silent)


def test_an_agent_that_answers_nan_is_named_and_counted(
    compiled: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    silence(monkeypatch, 1, [1])
    with caplog.at_level(logging.WARNING, "fedhql"):
        directory = RunDirectory(finish(tmp_path))
    assert [record.getMessage() for record in caplog.records] == [
        f"{FALLING}/seed0: agent2: NaN or infinity; left out whenever that happens, counted, "
        "and not logged again"
    ]
    rows = read_rows(directory.cell(CELLS[1]) / "federation.csv", FederationRow)
    refused = json.loads(directory.refused_answers(CELLS[1]).read_text())
    assert refused == {"agent2": sum(row.refused_answers for row in rows)}
    assert all(row.refused_answers == 2 * 5 for row in rows[:-1])  # two queries per server step
    assert all(np.isfinite([row.spread, row.td_error, row.loss]).all() for row in rows)
    for cell in (CELLS[0], CELLS[2]):  # the other lanes are not affected
        for name in RECORDS:
            mine, theirs = (RunDirectory(home).cell(cell) / name for home in (tmp_path, compiled))
            assert mine.read_bytes() == theirs.read_bytes()


def test_a_run_ends_when_no_answer_is_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence(monkeypatch, 0, [0, 1])
    with pytest.raises(NoUsableAnswers, match="fedhql/seed0: no agent gave an answer"):
        finish(tmp_path)
    counted = json.loads(RunDirectory(tmp_path).refused_answers(CELLS[0]).read_text())
    assert set(counted) == {"agent1", "agent2"}

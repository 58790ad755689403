import time
from itertools import pairwise
from pathlib import Path

from fedhql.experiments.books import Progress
from fedhql.experiments.cell import finish_cell
from fedhql.experiments.settings import read_settings
from fedhql.results.run_directory import Cell, RunDirectory
from tests.cli.running import TABULAR

CELL = Cell("fedhql", 0)


def finish(home: Path) -> list[Progress]:
    reports: list[Progress] = []
    finish_cell(
        read_settings(TABULAR.format(budget=900)),
        CELL,
        RunDirectory(home),
        report=reports.append,
        clock=time.monotonic,
        tensorboard=False,
    )
    return reports


def test_progress_grows_to_the_budget(tmp_path: Path) -> None:
    consumed = [report.consumed_env_steps for report in finish(tmp_path)]
    assert all(later > earlier - 1e-6 for earlier, later in pairwise(consumed))
    assert consumed[0] == 100  # one of three agents has learned 300 steps
    assert consumed[-1] == 900


def test_a_finished_cell_is_not_touched_again(tmp_path: Path) -> None:
    """A worker that outlives its parent may finish a cell that a resumed run is waiting for."""
    finish(tmp_path)
    rows = RunDirectory(tmp_path).cell(CELL) / "evaluations.csv"
    before = rows.stat()
    assert finish(tmp_path) == []
    assert rows.stat() == before

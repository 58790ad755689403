import os
from contextlib import closing
from pathlib import Path

import pytest

from fedhql.errors import DiskFull
from fedhql.storage.records import EvaluationRow, FederationRow, RecordFile, read_rows
from fedhql.storage.run_directory import Cell, RunDirectory

ROWS = [
    EvaluationRow("fedhql", 0, f"agent{n}", 5000, 5409.6, 9.3 * n, 10.0, "round", 7.5, 8.25, 0.5)
    for n in (1, 2, 3)
]


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.csv"
    with closing(RecordFile(path, EvaluationRow)) as file:
        file.append(ROWS)
    assert read_rows(path, EvaluationRow) == ROWS
    assert path.read_text().splitlines()[:2] == [
        "arm,seed,agent,own_env_steps,budget_env_steps,mean_return,best_mean_return,"
        "after,start_value,discounted_return,silent_units",
        "fedhql,0,agent1,5000,5409.6,9.3,10.0,round,7.5,8.25,0.5",
    ]


def test_a_resumed_file_drops_the_rows_after_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.csv"
    with closing(RecordFile(path, EvaluationRow)) as file:
        file.append(ROWS[:1])
        length = file.length()
        file.append(ROWS[2:])
    with path.open("a") as torn:
        torn.write("fedhql,0,age")
    with closing(RecordFile(path, EvaluationRow, length=length)) as file:
        file.append(ROWS[1:2])
    assert read_rows(path, EvaluationRow) == ROWS[:2]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_named(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.csv"
    path.symlink_to("/dev/full")
    with pytest.raises(DiskFull, match=r"no space is left for .*evaluations.csv"):
        RecordFile(path, EvaluationRow)
    path.unlink()
    file = RecordFile(path, EvaluationRow)
    with Path("/dev/full").open("wb") as full:
        os.dup2(full.fileno(), file._file.fileno())  # the disk is full after the header
    with pytest.raises(DiskFull), closing(file):
        file.append(ROWS)


def test_the_order_of_merged_rows_does_not_depend_on_who_finished_first(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    for cell in (Cell("fedhql", 0), Cell("independent", 10), Cell("independent", 2)):
        row = EvaluationRow(cell.arm, cell.seed, "agent1", 1, 1.0, 0.0, 0.0)
        with closing(RecordFile(directory.cell(cell) / "evaluations.csv", EvaluationRow)) as file:
            file.append([row])
        with closing(RecordFile(directory.cell(cell) / "federation.csv", FederationRow)):
            pass
    with (directory.cell(Cell("fedhql", 0)) / "evaluations.csv").open("a") as being_written:
        being_written.write("fedhql,0,agent1,2")
    directory.merge_records()
    merged = read_rows(directory.evaluations, EvaluationRow)
    assert [(row.arm, row.seed) for row in merged] == [
        ("independent", 2),
        ("independent", 10),
        ("fedhql", 0),
    ]
    assert read_rows(directory.federation, FederationRow) == []

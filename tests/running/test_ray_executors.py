from pathlib import Path
from typing import Any

from fedhql.engines.work import Send, Work
from fedhql.running.ray_executors import _in_scratch
from fedhql.storage.run_directory import RunDirectory


def test_a_part_on_another_machine_knows_the_name_of_its_run(tmp_path: Path) -> None:
    seen: list[RunDirectory] = []

    def do(directory: RunDirectory, send: Send) -> None:
        seen.append(directory)

    sent: list[Any] = []
    _in_scratch(Work(do), RunDirectory(tmp_path / "mine").name, lambda: 0.0, {}, sent.append)
    assert seen[0].name == "mine"
    assert seen[0].path.name.startswith("fedhql-task-")

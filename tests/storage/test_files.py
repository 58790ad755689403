import multiprocessing
from pathlib import Path

import pytest

from fedhql.storage.files import locked, whole_directory, write_atomically


def test_a_file_is_replaced_completely(tmp_path: Path) -> None:
    target = tmp_path / "new" / "file.txt"
    write_atomically(target, "one")
    write_atomically(target, b"two")
    assert target.read_text() == "two"
    assert list(target.parent.iterdir()) == [target]


def test_a_directory_is_replaced_completely_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "kept"
    for content in ("one", "two"):
        with whole_directory(target) as directory:
            (directory / content).write_text(content)
    assert [path.name for path in target.iterdir()] == ["two"]
    with pytest.raises(RuntimeError), whole_directory(target) as directory:
        raise RuntimeError
    assert [path.name for path in target.iterdir()] == ["two"]


def _hold(directory: Path) -> None:
    with locked(directory, wait=False):
        pass


def test_a_lock_keeps_other_processes_out_while_it_is_held(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with locked(tmp_path, wait=False):
        refused = context.Process(target=_hold, args=(tmp_path,))
        refused.start()
        refused.join()
    admitted = context.Process(target=_hold, args=(tmp_path,))
    admitted.start()
    admitted.join()
    assert refused.exitcode == 1
    assert admitted.exitcode == 0

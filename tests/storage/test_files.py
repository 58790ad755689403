import errno
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhql.errors import DiskFull
from fedhql.storage.files import locked, needing_space, whole_directory, write_atomically

FULL = Path("/dev/full")  # every write says that no space is left
needs_dev_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")


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


@needs_dev_full
def test_a_full_disk_leaves_the_file_before(tmp_path: Path) -> None:
    target = tmp_path / "file.txt"
    write_atomically(target, "one")
    (tmp_path / ".file.txt.tmp").symlink_to(FULL)
    with pytest.raises(DiskFull, match=r"no space is left for .*file.txt; free some"):
        write_atomically(target, "two")
    assert target.read_text() == "one"
    assert list(tmp_path.iterdir()) == [target]


@needs_dev_full
@pytest.mark.parametrize("save", [np.save, np.savez])
def test_a_full_disk_leaves_the_directory_before(tmp_path: Path, save: Any) -> None:
    target = tmp_path / "kept"
    with whole_directory(target) as directory:
        save(directory / "array.npz", np.zeros(2))
    before = [path.name for path in target.iterdir()]
    with (
        pytest.raises(DiskFull, match=r"no space is left for .*kept"),
        whole_directory(target),
        FULL.open("wb") as file,
    ):
        save(file, np.zeros(100_000))
    assert [path.name for path in target.iterdir()] == before
    assert list(tmp_path.iterdir()) == [target]


def test_a_disk_that_is_full_when_a_directory_is_synced_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems may allocate space only then."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull), whole_directory(tmp_path / "kept") as directory:
        (directory / "file").write_text("one")
    assert list(tmp_path.iterdir()) == []


def test_numpys_short_writes_mean_a_full_disk(tmp_path: Path) -> None:
    """A limit on the size of files cuts a write short, as a full disk does."""
    script = (
        "import resource, sys, numpy as np\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))\n"
        "try:\n"
        "    np.save(sys.argv[1], np.zeros(100_000))\n"
        "except OSError as error:\n"
        "    print(error.errno, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "array.npy")],
        capture_output=True,
        text=True,
        check=True,
    )
    number, _, message = done.stdout.strip().partition(" ")
    assert number == "None"
    with pytest.raises(DiskFull), needing_space(tmp_path):
        raise OSError(message)


def test_other_failures_to_write_stay_what_they_are(tmp_path: Path) -> None:
    for error in (OSError("something else"), PermissionError(errno.EACCES, "denied")):
        with (
            pytest.raises(OSError, match=r"else|denied") as caught,
            whole_directory(tmp_path / "kept"),
        ):
            raise error
        assert caught.value is error


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

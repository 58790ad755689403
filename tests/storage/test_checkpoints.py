import errno
from pathlib import Path

import pytest

from fedhql.errors import DiskFull
from fedhql.storage.checkpoints import SHARE_OF_RUN, Checkpoints


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def write(checkpoints: Checkpoints, number: int, text: str = "") -> None:
    with checkpoints.write(number) as directory:
        (directory / "state").write_text(text or str(number))


def test_only_the_newest_checkpoint_is_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, Clock())
    assert checkpoints.latest() is None
    for number in (1, 9, 10):
        write(checkpoints, number)
    latest = Checkpoints(tmp_path, Clock()).latest()
    assert latest is not None
    assert (latest / "state").read_text() == "10"
    assert len(list(tmp_path.iterdir())) == 1


def test_an_unfinished_checkpoint_is_ignored(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, Clock())
    write(checkpoints, 1)
    with pytest.raises(ZeroDivisionError), checkpoints.write(2) as directory:
        (directory / "state").write_text(str(1 / 0))
    latest = checkpoints.latest()
    assert latest is not None
    assert (latest / "state").read_text() == "1"
    write(checkpoints, 2)  # the remains of the failure do not matter
    assert checkpoints.latest() == tmp_path / "round-000000002"


def test_a_full_disk_leaves_the_checkpoint_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    checkpoints = Checkpoints(tmp_path, clock)
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(DiskFull, match="no space is left for"), checkpoints.write(0):
        raise full  # there is no checkpoint to go on from
    write(checkpoints, 1)
    with checkpoints.write(2) as directory:
        (directory / "state").write_text("a part")
        clock.now += 1.0
        raise full
    assert [path.name for path in tmp_path.iterdir()] == ["round-000000001"]
    assert "no space in" in caplog.text
    assert not checkpoints.due()


def test_the_checkpoint_of_a_round_can_be_written_again(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, Clock())
    write(checkpoints, 0, "before")
    write(checkpoints, 0, "after")
    latest = checkpoints.latest()
    assert latest is not None
    assert (latest / "state").read_text() == "after"


def test_checkpoints_take_a_small_share_of_the_run(tmp_path: Path) -> None:
    clock = Clock()
    checkpoints = Checkpoints(tmp_path, clock)
    assert checkpoints.due()
    with checkpoints.write(1):
        clock.now += 3.0
    clock.now += 3.0 / SHARE_OF_RUN - 0.1
    assert not checkpoints.due()
    clock.now += 0.2
    assert checkpoints.due()
    assert SHARE_OF_RUN < 0.05

"""File transfers take effect completely or not at all, and always leave a resumable run."""

from pathlib import Path

import pytest

from fedhql.cluster import file_transfer as files
from fedhql.cluster.file_transfer import FileReceiver, FileSender, Parcel, files_below


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def write(home: Path, **content: str) -> None:
    for name, text in content.items():
        path = home / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def content(home: Path) -> dict[str, str]:
    return {name: data.decode() for name, data in files_below(home, ["."]).items()}


class Pair:
    """A sender and a receiver, connected by a list of parcels."""

    def __init__(self, tmp_path: Path) -> None:
        self.there, self.here = tmp_path / "there", tmp_path / "here"
        self.there.mkdir()
        self.clock = Clock()
        self.parcels: list[Parcel] = []
        self.sender = FileSender(self.there, self.parcels.append, self.clock)
        self.receiver = FileReceiver(self.here, tmp_path / "staging", [])

    def deliver(self, count: int | None = None) -> bool:
        taken = self.parcels[:count]
        del self.parcels[:count]
        return [self.receiver.receive(parcel) for parcel in taken][-1]


def test_changed_files_arrive_and_deleted_files_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PARCEL_BYTES", 4)
    pair = Pair(tmp_path)
    write(pair.there, rows="0123456789", empty="", grids__0__lanes="a")
    (pair.there / ".lock").touch()
    pair.sender.send()
    sizes = [[(path, len(content)) for path, content in each.pieces] for each in pair.parcels]
    assert sizes == [
        [("empty", 0), ("grids/0/lanes", 1)],
        [("rows", 4)],
        [("rows", 4)],
        [("rows", 2)],
    ]
    pair.deliver()
    assert content(pair.here) == {"rows": "0123456789", "empty": "", "grids/0/lanes": "a"}
    write(pair.there, rows="01234567890")
    (pair.there / "grids/0/lanes").unlink()
    pair.sender.send()
    pair.deliver()
    assert content(pair.here) == {"rows": "01234567890", "empty": ""}
    assert not (pair.here / "grids").exists()
    pair.sender.send()
    assert pair.parcels == []  # nothing has changed


def test_a_checkpoint_is_complete_or_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PARCEL_BYTES", 1)
    pair = Pair(tmp_path)
    write(
        pair.there, cell__rows="1", **{"cell__round-1__agent": "one", "cell__round-1__state": "1"}
    )
    pair.sender.send()
    assert pair.deliver()  # a new checkpoint
    (pair.there / "cell/round-1").rename(pair.there / "cell/round-2")
    write(pair.there, cell__rows="12")
    pair.sender.send()
    assert len(pair.parcels) == 6
    while pair.parcels[0].whole is None:
        assert not pair.deliver(1)
        assert content(pair.here)["cell/rows"] == "1"
        assert {path.name for path in (pair.here / "cell").glob("round-*")} == {"round-1"}
    assert pair.deliver()
    assert {path.name for path in (pair.here / "cell").glob("round-*")} == {"round-2"}
    assert content(pair.here)["cell/round-2/agent"] == "one"
    assert content(pair.here)["cell/rows"] == "12"


def test_the_same_checkpoint_is_not_reported_as_new(tmp_path: Path) -> None:
    """Otherwise a task that always dies after its first checkpoint would be retried forever."""
    pair = Pair(tmp_path)
    write(pair.there, **{"round-0__state": "0"})
    pair.sender.send()
    assert pair.deliver()
    pair.receiver = FileReceiver(pair.here, tmp_path / "staging", files_below(pair.here, ["."]))
    (pair.there / "round-0/state").unlink()
    write(pair.there, **{"round-0__state": "0"})
    write(pair.there, rows="1")
    pair.sender.send()
    assert not pair.deliver()


def test_results_are_moved_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the driver is killed in between, the cell is unfinished and can be resumed."""
    pair = Pair(tmp_path)
    write(pair.there, **{"cells__a__result.json": "{}", "zzz__last": "1", "round-3__state": "3"})
    pair.sender.send()
    order: list[str] = []
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        order.append(target.relative_to(pair.here).as_posix())
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    pair.deliver()
    assert order == ["zzz/last", "round-3", "cells/a/result.json"]


def test_sending_takes_a_small_share_of_the_time(tmp_path: Path) -> None:
    pair = Pair(tmp_path)

    def send_slowly(parcel: Parcel) -> None:
        pair.clock.now += 1.0
        pair.parcels.append(parcel)

    pair.sender = FileSender(pair.there, send_slowly, pair.clock)
    write(pair.there, rows="1")
    pair.sender.send_if_due()
    assert pair.clock.now == 1.0
    write(pair.there, rows="12")
    pair.clock.now += 49.0
    pair.sender.send_if_due()
    assert pair.clock.now == 50.0
    pair.clock.now += 1.0
    pair.sender.send_if_due()
    assert pair.clock.now == 52.0

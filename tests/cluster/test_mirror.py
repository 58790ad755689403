"""A mirror keeps a run directory at a URL, which may hold a transfer that was interrupted."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest

from fedhql.cluster.mirror import INDEX, Mirror, local_directory
from fedhql.errors import RunDirectoryError


class Stopped(Exception):
    pass


def clock() -> float:
    return 0.0


def write(home: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)


def read(home: Path) -> dict[str, str]:
    found = (path for path in home.rglob("*") if path.is_file())
    return {path.relative_to(home).as_posix(): path.read_text() for path in found}


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory://{uuid4()}/runs/mine"
    return f"file://{tmp_path}/bucket/mine"


def fetched(url: str, home: Path) -> dict[str, str]:
    Mirror(home, url, clock).fetch()
    return read(home)


def test_the_next_run_finds_the_files_that_were_sent(url: str, tmp_path: Path) -> None:
    with local_directory(url, clock) as (path, mirror):
        assert mirror is not None
        assert path.name == "mine"
        write(path, {"rows": "1", "cell/round-1/state": "1", ".lock": ""})
        mirror.send()
        (path / "cell/round-1").rename(path / "cell/round-2")
        write(path, {"rows": "12"})
    with local_directory(url, clock) as (path, _):
        assert read(path) == {"rows": "12", "cell/round-2/state": "1"}
    files, root = fsspec.core.url_to_fs(url)
    assert not files.exists(f"{root}/cell/round-1/state")


def test_a_local_path_needs_no_mirror(tmp_path: Path) -> None:
    with local_directory(str(tmp_path / "run"), clock) as (path, mirror):
        assert path == tmp_path / "run"
        assert mirror is None


@pytest.mark.parametrize("after", range(5))
def test_a_transfer_that_stops_at_any_file_can_be_resumed(
    after: int, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint counts only when it is complete and its rows are there."""
    local = tmp_path / "local"
    mirror = Mirror(local, url, clock)
    write(local, {"rows": "1", "cell/round-1/a": "1", "cell/round-1/b": "1"})
    mirror.send()
    (local / "cell/round-1").rename(local / "cell/round-2")
    write(local, {"rows": "12", "cell/round-2/a": "2", "cell/round-2/b": "2"})
    sent: list[str] = []
    real = mirror._files.pipe_file

    def pipe_file(path: str, content: bytes) -> Any:
        if len(sent) == after:
            raise Stopped
        sent.append(path)
        return real(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(mirror._files, "pipe_file", pipe_file)
        if after < 4:
            with pytest.raises(Stopped):
                mirror.send()
        else:
            mirror.send()
    found = fetched(url, tmp_path / "next")
    round_2 = {"cell/round-2/a": "2", "cell/round-2/b": "2"}
    if after < 4:
        assert found.pop("rows") in ("1", "12")
        assert found == {"cell/round-1/a": "1", "cell/round-1/b": "1"}
    else:
        assert found == {"rows": "12"} | round_2
    with local_directory(url, clock) as (path, _):
        write(path, {"more": "3"})
    assert fetched(url, tmp_path / "third")["more"] == "3"


def test_files_outside_the_index_are_removed(url: str, tmp_path: Path) -> None:
    Mirror(tmp_path / "a", url, clock).send()
    with local_directory(url, clock) as (path, _):
        write(path, {"rows": "1"})
    files, root = fsspec.core.url_to_fs(url)
    files.pipe_file(f"{root}/orphan", b"?")
    with local_directory(url, clock) as (path, _):
        assert read(path) == {"rows": "1"}
    assert not files.exists(f"{root}/orphan")


def test_a_url_with_other_files_is_refused_and_not_written(url: str, tmp_path: Path) -> None:
    files, root = fsspec.core.url_to_fs(url)
    files.makedirs(root, exist_ok=True)
    files.pipe_file(f"{root}/theirs", b"1")
    with pytest.raises(RunDirectoryError, match="holds no run"):
        Mirror(tmp_path, url, clock).fetch()
    assert not files.exists(f"{root}/{INDEX}")


def test_an_unknown_protocol_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="nonsense://x: "):
        Mirror(tmp_path, "nonsense://x", clock)


class Outage:
    """A failure of the store, which lasts until `mended` is True."""

    def __init__(self, mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
        put, self.mended = mirror._put, False

        def try_to_put(name: str, content: bytes) -> None:
            if not self.mended:
                raise OSError("quota exceeded")
            put(name, content)

        monkeypatch.setattr(mirror, "_put", try_to_put)


def test_a_failed_transfer_is_retried(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = iter([0.0, *range(2, 1000, 20)])
    with local_directory(url, lambda: next(now)) as (path, mirror):
        assert mirror is not None
        outage = Outage(mirror, monkeypatch)
        write(path, {"rows": "1"})
        mirror.send_if_due()
        assert "quota exceeded; the next attempt is in 30 s" in caplog.text
        outage.mended = True
        for _ in range(3):
            mirror.send_if_due()
        assert fetched(url, tmp_path / "there") == {"rows": "1"}


def test_a_run_that_cannot_be_sent_is_kept_on_this_machine(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def run() -> None:
        with local_directory(url, clock) as (path, mirror):
            assert mirror is not None
            Outage(mirror, monkeypatch)
            write(path, {"rows": "1"})

    with pytest.raises(
        RunDirectoryError, match=r"cannot be written: quota exceeded; .*kept in"
    ) as e:
        run()
    (kept,) = tmp_path.glob("fedhql-unsent-*/mine")
    assert read(kept) == {"rows": "1"}
    assert str(kept) in str(e.value)


def test_no_work_begins_if_the_url_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(RunDirectoryError, match=r"file://.* cannot be written"),
        local_directory(f"file://{tmp_path}/file/mine", clock),
    ):
        pytest.fail("work has begun")

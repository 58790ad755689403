"""Copy the files of work on another machine into the run directory, as they change.

The machines share no file system. The receiver stages the files that arrive. It moves them into
place when the sender reports that all changes so far are sent. Rows and exported agents are moved
first, then checkpoints, then results. So a checkpoint is never newer than the rows it refers to.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedhql.storage.checkpoints import Pacing
from fedhql.storage.files import locked, sync

PARCEL_BYTES = 8 * 2**20
MIN_PAUSE_SECONDS = 1.0

Signature = tuple[int, int, int]  # inode, size, modification time


@dataclass(frozen=True)
class Parcel:
    """Pieces of files, in order. One parcel holds many small files; a large file takes several."""

    pieces: Sequence[tuple[str, bytes]]  # path, content
    # Only in the last parcel of a transfer: the paths of all files that the sender has.
    whole: frozenset[str] | None = None


class FileSender:
    """Send the files that change below a directory, from the process that changes them."""

    def __init__(
        self, home: Path, send: Callable[[Parcel], None], clock: Callable[[], float]
    ) -> None:
        self._home, self._send, self._clock = home, send, clock
        self._sent = signatures(home)
        self._pacing = Pacing(clock, min_pause=MIN_PAUSE_SECONDS)

    def send_if_due(self) -> None:
        """Send the changes if enough time has passed since the last transfer."""
        if self._pacing.due():
            self.send()

    def send(self) -> None:
        begun = self._clock()
        now = signatures(self._home)
        if now != self._sent:
            self._send_changed(now)
        self._sent = now
        self._pacing.finished(begun)

    def _send_changed(self, now: dict[str, Signature]) -> None:
        pieces: list[tuple[str, bytes]] = []
        size = 0
        for path in (path for path in now if self._sent.get(path) != now[path]):
            for content in _pieces(self._home / path):
                if size + len(content) > PARCEL_BYTES:
                    self._send(Parcel(pieces))
                    pieces, size = [], 0
                pieces.append((path, content))
                size += len(content)
        self._send(Parcel(pieces, frozenset(now)))


class FileReceiver:
    """Move received files into `home`. Until a transfer is complete, its files are in `staging`."""

    def __init__(self, home: Path, staging: Path, paths: Iterable[str]) -> None:
        """Clear `staging`; `paths` are the files that the sender started with."""
        self._home, self._staging, self._known = home, staging, set(paths)
        shutil.rmtree(staging, ignore_errors=True)
        self._arrived: set[str] = set()

    def receive(self, parcel: Parcel) -> bool:
        """Stage a parcel; return True if it completes a transfer that holds a new checkpoint."""
        for path, content in parcel.pieces:
            (self._staging / path).parent.mkdir(parents=True, exist_ok=True)
            with (self._staging / path).open("ab" if path in self._arrived else "wb") as file:
                file.write(content)
            self._arrived.add(path)
        return parcel.whole is not None and self._put_in_place(parcel.whole)

    def _put_in_place(self, paths: frozenset[str]) -> bool:
        has_new_checkpoint = False
        for path in self._arrived:
            sync(self._staging / path)
        for path in sorted(self._arrived, key=_moving_order):
            unit = _unit(path)
            if not (self._staging / unit).exists():  # it was moved with the rest of its checkpoint
                continue
            has_new_checkpoint |= unit != path and not (self._home / unit).exists()
            (self._home / unit).parent.mkdir(parents=True, exist_ok=True)
            if (self._home / unit).is_dir():  # an earlier attempt reached this round, too
                shutil.rmtree(self._home / unit)
            (self._staging / unit).rename(self._home / unit)
        for path in self._known - paths:
            (self._home / path).unlink(missing_ok=True)
            _remove_empty(self._home / path, self._home)
        self._known, self._arrived = set(paths), set()
        return has_new_checkpoint


@contextmanager
def scratch(prefix: str, home: Path) -> Iterator[Path]:
    """Yield a temporary directory; first remove those that killed processes left behind.

    A running process holds the lock of its directory, so a directory with a free lock is unused.
    """
    for lock in home.glob(f"{prefix}*/.lock"):
        # OSError: the directory is in use, or belongs to another user.
        with suppress(OSError), locked(lock.parent, wait=False):
            shutil.rmtree(lock.parent, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(prefix=prefix, dir=home, ignore_cleanup_errors=True) as made,
        locked(Path(made), wait=True),
    ):
        yield Path(made)


def files_below(home: Path, parts: Iterable[str]) -> dict[str, bytes]:
    """Return the content of the files in some parts of a run directory, by relative path."""
    found = (path for part in parts for path in sorted((home / part).rglob("*")))
    return {name: (home / name).read_bytes() for name in _visible(home, found)}


def signatures(home: Path) -> dict[str, Signature]:
    stats = {name: (home / name).stat() for name in _visible(home, sorted(home.rglob("*")))}
    return {name: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


def _visible(home: Path, paths: Iterable[Path]) -> list[str]:
    """Return the relative paths of the files that are not hidden.

    The names of locks, and of files and directories that are being written, start with a dot.
    """
    relative = [path.relative_to(home) for path in paths if path.is_file()]
    return [p.as_posix() for p in relative if not any(part.startswith(".") for part in p.parts)]


def _pieces(path: Path) -> Iterable[bytes]:
    with path.open("rb") as file:
        yield file.read(PARCEL_BYTES)  # an empty file is one empty piece
        while content := file.read(PARCEL_BYTES):
            yield content


def _unit(path: str) -> str:
    """Return what is moved in one step: the directory of a checkpoint, or the file itself."""
    parts = path.split("/")
    rounds = [n for n, part in enumerate(parts) if part.startswith("round-")]
    return "/".join(parts[: rounds[0] + 1]) if rounds else path


def _moving_order(path: str) -> tuple[int, str]:
    """Return a sort key that puts every file after the files it refers to."""
    if _unit(path) != path:
        return 1, path
    return (2 if path.endswith("result.json") else 0), path


def _remove_empty(path: Path, home: Path) -> None:
    """Remove the directories that a removed file leaves empty, with their unused locks."""
    for parent in path.parents:
        if parent == home or not parent.is_dir():
            return
        if any(child.name != ".lock" for child in parent.iterdir()):
            return
        shutil.rmtree(parent)

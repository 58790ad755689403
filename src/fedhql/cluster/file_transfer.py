"""Files of work on another machine, as they change, into the run directory they belong to.

No file system is shared. What is sent is whole or has no effect: files are put aside as they
arrive, and take their places when the sender says that it has sent all of this moment. Rows and
exported agents go first, then checkpoints, then results: a checkpoint is never newer than the rows
it counts on.
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

Signature = tuple[int, int, int]  # inode, size, time of change


@dataclass(frozen=True)
class Parcel:
    """Pieces of files, in order: many small files in one message, a large one in several."""

    pieces: Sequence[tuple[str, bytes]]  # path, content
    # With the last one: all that has changed until now is sent; these files exist, and no others.
    whole: frozenset[str] | None = None


class FileSender:
    """Sends what changes below a directory, from the process that changes it."""

    def __init__(
        self, home: Path, send: Callable[[Parcel], None], clock: Callable[[], float]
    ) -> None:
        self._home, self._send, self._clock = home, send, clock
        self._sent = signatures(home)
        self._pacing = Pacing(clock, min_pause=MIN_PAUSE_SECONDS)

    def send_if_due(self) -> None:
        """Whether waiting since the last time has paid for this one."""
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
    """Puts them where they belong in `home`; what is not complete yet waits in `aside`."""

    def __init__(self, home: Path, aside: Path, paths: Iterable[str]) -> None:
        """`paths` are the files the sender began with."""
        self._home, self._aside, self._known = home, aside, set(paths)
        shutil.rmtree(aside, ignore_errors=True)
        self._arrived: set[str] = set()

    def receive(self, parcel: Parcel) -> bool:
        """-> whether there is a checkpoint now that has not been there before."""
        for path, content in parcel.pieces:
            (self._aside / path).parent.mkdir(parents=True, exist_ok=True)
            with (self._aside / path).open("ab" if path in self._arrived else "wb") as file:
                file.write(content)
            self._arrived.add(path)
        return parcel.whole is not None and self._put_in_place(parcel.whole)

    def _put_in_place(self, paths: frozenset[str]) -> bool:
        further = False
        for path in self._arrived:
            sync(self._aside / path)
        for path in sorted(self._arrived, key=_turn):
            unit = _unit(path)
            if not (self._aside / unit).exists():  # its checkpoint has been moved as one
                continue
            further |= unit != path and not (self._home / unit).exists()
            (self._home / unit).parent.mkdir(parents=True, exist_ok=True)
            if (self._home / unit).is_dir():  # the same round, from who went on from before it
                shutil.rmtree(self._home / unit)
            (self._aside / unit).rename(self._home / unit)
        for path in self._known - paths:
            (self._home / path).unlink(missing_ok=True)
            _remove_empty(self._home / path, self._home)
        self._known, self._arrived = set(paths), set()
        return further


@contextmanager
def scratch(prefix: str, home: Path) -> Iterator[Path]:
    """A directory for a while. Those of processes that were killed go: their locks are free."""
    for lock in home.glob(f"{prefix}*/.lock"):
        with suppress(OSError), locked(lock.parent, wait=False):  # else it is in use, or not ours
            shutil.rmtree(lock.parent, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(prefix=prefix, dir=home, ignore_cleanup_errors=True) as made,
        locked(Path(made), wait=True),
    ):
        yield Path(made)


def files_below(home: Path, parts: Iterable[str]) -> dict[str, bytes]:
    """What some parts of a run directory hold, by relative path."""
    found = (path for part in parts for path in sorted((home / part).rglob("*")))
    return {name: (home / name).read_bytes() for name in _visible(home, found)}


def signatures(home: Path) -> dict[str, Signature]:
    stats = {name: (home / name).stat() for name in _visible(home, sorted(home.rglob("*")))}
    return {name: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


def _visible(home: Path, paths: Iterable[Path]) -> list[str]:
    """Without locks and what is being written: their names, or their directories', have a dot."""
    relative = [path.relative_to(home) for path in paths if path.is_file()]
    return [p.as_posix() for p in relative if not any(part.startswith(".") for part in p.parts)]


def _pieces(path: Path) -> Iterable[bytes]:
    with path.open("rb") as file:
        yield file.read(PARCEL_BYTES)  # once, if empty
        while content := file.read(PARCEL_BYTES):
            yield content


def _unit(path: str) -> str:
    """What is moved as one: a checkpoint's directory, or the file itself."""
    parts = path.split("/")
    rounds = [n for n, part in enumerate(parts) if part.startswith("round-")]
    return "/".join(parts[: rounds[0] + 1]) if rounds else path


def _turn(path: str) -> tuple[int, str]:
    """Whatever another file counts on comes before it."""
    if _unit(path) != path:
        return 1, path
    return (2 if path.endswith("result.json") else 0), path


def _remove_empty(path: Path, home: Path) -> None:
    """The directories a removed file leaves empty; a lock there is nobody's any more."""
    for parent in path.parents:
        if parent == home or not parent.is_dir():
            return
        if any(child.name != ".lock" for child in parent.iterdir()):
            return
        shutil.rmtree(parent)

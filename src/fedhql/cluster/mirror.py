"""A run directory at any fsspec URL (s3://, gs://, sftp://, ...), by way of a local one.

Object stores can neither append nor rename. So a run works in a local directory, and now and then
what has changed there is sent. An index, sent after everything it names, says what is complete;
whoever goes on takes what it names and nothing else. What it no longer names is removed after it.
"""

import json
import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedhql.cluster.file_transfer import MIN_PAUSE_SECONDS, scratch, signatures
from fedhql.errors import MissingExtra, RunDirectoryError
from fedhql.storage.checkpoints import Pacing

log = logging.getLogger(__name__)

INDEX = ".fedhql-index.json"
RETRY_SECONDS = 30


class Mirror:
    """A local directory, kept the same at a URL."""

    def __init__(self, local: Path, url: str, clock: Callable[[], float]) -> None:
        self._local, self._url, self._clock = local, url, clock
        self._files, self._root = _open(url)
        self._sent: dict[str, Any] = {}
        self._there: set[str] = set()
        self._pacing = Pacing(clock, min_pause=MIN_PAUSE_SECONDS)
        self._pacing.postpone(MIN_PAUSE_SECONDS)

    def fetch(self) -> None:
        """What is there so far; nothing, if nothing is."""
        self._there = set(self._names_there())
        if not self._there:
            return
        if INDEX not in self._there:
            raise RunDirectoryError(f"{self._url} is not empty and holds no run of fedhql")
        self._there.remove(INDEX)
        for name in json.loads(self._files.cat_file(f"{self._root}/{INDEX}")):
            (self._local / name).parent.mkdir(parents=True, exist_ok=True)
            (self._local / name).write_bytes(self._files.cat_file(f"{self._root}/{name}"))
        self._sent = signatures(self._local)

    def require_writable(self) -> None:
        """Before work begins."""
        if self._there:
            return  # it has been
        try:
            self._put(INDEX, b"[]")
        except Exception as error:  # every store has errors of its own
            raise RunDirectoryError(f"--out {self._url} cannot be written: {error}") from error

    def send_if_due(self) -> None:
        """What cannot be sent now is sent later: nothing there is a reason to end a run."""
        if not self._pacing.due():
            return
        try:
            self.send()
        except FileNotFoundError:  # replaced by a newer one meanwhile
            self._pacing.postpone(MIN_PAUSE_SECONDS)
        except Exception as error:  # noqa: BLE001 - every store has errors of its own
            log.warning("%s: %s; tried again in %s s", self._url, error, RETRY_SECONDS)
            self._pacing.postpone(RETRY_SECONDS)

    def send(self) -> None:
        begun = self._clock()
        now = signatures(self._local)
        # Checkpoints are read before the rows they count on: rows may be newer, but not older.
        changed = [name for name, signature in now.items() if self._sent.get(name) != signature]
        for name in sorted(changed, key=lambda name: ("/round-" not in name, name)):
            self._put(name, (self._local / name).read_bytes())
        if set(now) != self._there:
            self._put(INDEX, json.dumps(sorted(now)).encode())
        for name in self._there - set(now):
            self._files.rm_file(f"{self._root}/{name}")
        self._sent, self._there = now, set(now)
        self._pacing.finished(begun)

    def _put(self, name: str, content: bytes) -> None:
        """The old content or the new, whatever happens."""
        path = f"{self._root}/{name}"
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        with self._files.transaction:
            self._files.pipe_file(path, content)

    def _names_there(self) -> Iterator[str]:
        try:
            found = self._files.find(self._root)
        except FileNotFoundError:
            return
        yield from (path[len(self._root) + 1 :] for path in found)


@contextmanager
def local_directory(out: str, clock: Callable[[], float]) -> Iterator[tuple[Path, Mirror | None]]:
    """`out` itself, or for a URL a local directory with what is there, sent at the end."""
    if "://" not in out:
        yield Path(out), None
        return
    with scratch("fedhql-mirror-", Path(tempfile.gettempdir())) as home:
        local = home / out.rstrip("/").rsplit("/", 1)[-1]  # a run is named for its directory
        mirror = Mirror(local, out, clock)
        mirror.fetch()
        mirror.require_writable()
        try:
            yield local, mirror
        except RunDirectoryError as error:  # which nobody shall look for here
            raise RunDirectoryError(str(error).replace(str(local), out.rstrip("/"))) from error
        finally:
            _send_or_keep(mirror, local, out)


def _send_or_keep(mirror: Mirror, local: Path, out: str) -> None:
    try:
        mirror.send()
    except Exception as error:  # every store has errors of its own
        local.mkdir(exist_ok=True)  # if there was nothing to send but what to remove
        kept = Path(tempfile.mkdtemp(prefix="fedhql-unsent-"))
        local.rename(kept / local.name)
        raise RunDirectoryError(
            f"{out} cannot be written: {error}; what is not there yet is kept in "
            f"{kept / local.name}, which is a run directory like any other"
        ) from error


def _open(url: str) -> tuple[Any, str]:
    """-> the file system, and the directory in it."""
    try:
        import fsspec
    except ModuleNotFoundError as error:
        raise MissingExtra.named("ray", f"--out {url}") from error
    try:
        files, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:  # its package is not installed; no such protocol
        raise RunDirectoryError(f"--out {url}: {error}") from error
    return files, root.rstrip("/")

"""Keep a run directory at any fsspec URL (s3://, gs://, sftp://, ...), with a local copy.

Object stores can neither append nor rename. So a run works in a local directory, and the mirror
sends the changed files from time to time. An index names the files that are complete; it is sent
after these files. A resumed run fetches only the files in the index. Files that are no longer in
the index are removed after the index is sent.
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
    """Copy the changes of a local directory to a URL."""

    def __init__(self, local: Path, url: str, clock: Callable[[], float]) -> None:
        self._local, self._url, self._clock = local, url, clock
        self._files, self._root = _open(url)
        self._sent: dict[str, Any] = {}
        self._at_url: set[str] = set()  # relative paths, without the index
        self._pacing = Pacing(clock, min_pause=MIN_PAUSE_SECONDS)
        self._pacing.postpone(MIN_PAUSE_SECONDS)

    def fetch(self) -> None:
        """Fetch the files that the index at the URL names, or nothing if the URL is empty.

        Raise RunDirectoryError if the URL holds files but no index.
        """
        self._at_url = set(self._names_at_url())
        if not self._at_url:
            return
        if INDEX not in self._at_url:
            raise RunDirectoryError(
                f"{self._url} is not empty and holds no run of fedhql; choose another directory"
            )
        self._at_url.remove(INDEX)
        for name in json.loads(self._files.cat_file(f"{self._root}/{INDEX}")):
            (self._local / name).parent.mkdir(parents=True, exist_ok=True)
            (self._local / name).write_bytes(self._files.cat_file(f"{self._root}/{name}"))
        self._sent = signatures(self._local)

    def require_writable(self) -> None:
        """Raise RunDirectoryError if the URL cannot be written; call it before work begins."""
        if self._at_url:
            return  # a run has written there before
        try:
            self._put(INDEX, b"[]")
        except Exception as error:  # each kind of store raises its own types of errors
            raise RunDirectoryError(f"{self._url} cannot be written: {error}") from error

    def send_if_due(self) -> None:
        """Send the changes if enough time has passed. After an error, log it and retry later."""
        if not self._pacing.due():
            return
        try:
            self.send()
        except FileNotFoundError:  # the run has replaced a file meanwhile
            self._pacing.postpone(MIN_PAUSE_SECONDS)
        except Exception as error:  # noqa: BLE001 - each kind of store raises its own types
            log.warning("%s: %s; the next attempt is in %s s", self._url, error, RETRY_SECONDS)
            self._pacing.postpone(RETRY_SECONDS)

    def send(self) -> None:
        begun = self._clock()
        now = signatures(self._local)
        # Read checkpoints before the rows they refer to: rows may be newer, but not older.
        changed = [name for name, signature in now.items() if self._sent.get(name) != signature]
        for name in sorted(changed, key=lambda name: ("/round-" not in name, name)):
            self._put(name, (self._local / name).read_bytes())
        if set(now) != self._at_url:
            self._put(INDEX, json.dumps(sorted(now)).encode())
        for name in self._at_url - set(now):
            self._files.rm_file(f"{self._root}/{name}")
        self._sent, self._at_url = now, set(now)
        self._pacing.finished(begun)

    def _put(self, name: str, content: bytes) -> None:
        """Write a file at the URL; after a failure it has either its old or its new content."""
        path = f"{self._root}/{name}"
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        with self._files.transaction:
            self._files.pipe_file(path, content)

    def _names_at_url(self) -> Iterator[str]:
        try:
            found = self._files.find(self._root)
        except FileNotFoundError:
            return
        yield from (path[len(self._root) + 1 :] for path in found)


@contextmanager
def local_directory(out: str, clock: Callable[[], float]) -> Iterator[tuple[Path, Mirror | None]]:
    """Yield the directory to work in, and its mirror if `out` is a URL.

    For a URL, the directory is a temporary one. It starts with the files at the URL, and its
    changes are sent at the end.
    """
    if "://" not in out:
        yield Path(out), None
        return
    with scratch("fedhql-mirror-", Path(tempfile.gettempdir())) as home:
        local = home / out.rstrip("/").rsplit("/", 1)[-1]  # a run has the name of its directory
        mirror = Mirror(local, out, clock)
        mirror.fetch()
        mirror.require_writable()
        try:
            yield local, mirror
        except RunDirectoryError as error:  # name the URL instead of the temporary directory
            raise RunDirectoryError(str(error).replace(str(local), out.rstrip("/"))) from error
        finally:
            _send_or_keep(mirror, local, out)


def _send_or_keep(mirror: Mirror, local: Path, out: str) -> None:
    try:
        mirror.send()
    except Exception as error:  # each kind of store raises its own types of errors
        local.mkdir(exist_ok=True)  # it is missing if there were only files to remove
        kept = Path(tempfile.mkdtemp(prefix="fedhql-unsent-"))
        local.rename(kept / local.name)
        raise RunDirectoryError(
            f"{out} cannot be written: {error}; the complete run directory is kept in "
            f"{kept / local.name}"
        ) from error


def _open(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the directory in it."""
    try:
        import fsspec
    except ModuleNotFoundError as error:
        raise MissingExtra.named("ray", f"out = {url}") from error
    try:
        files, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:  # a missing package, or an unknown protocol
        raise RunDirectoryError(f"{url}: {error}") from error
    return files, root.rstrip("/")

"""Write files and directories so that no reader finds a partial one, even after a crash."""

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedhql.errors import RESUME, DiskFull

_SHORT_WRITE = re.compile(r"\d+ requested and \d+ written")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file. Raise DiskFull if no space is left; the file before is then still there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with needing_space(path):
            with temporary.open("wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync(path.parent)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary directory to fill; it replaces `path` once it is complete on disk.

    Raise DiskFull if no space is left; the directory before is then still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # a run that was killed may have left it
    try:
        with needing_space(path):
            temporary.mkdir()
            yield temporary
            for entry in (*temporary.rglob("*"), temporary):
                sync(entry)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    old = path.with_name(f".{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():  # unlike a file, a directory cannot be replaced by one rename
        path.rename(old)
    temporary.rename(path)
    sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def needing_space(path: Path) -> Iterator[None]:
    """Raise DiskFull if a write fails because no space is left for `path`."""
    try:
        yield
    except OSError as error:
        # NumPy counts what a short write has written, and loses the number of the error.
        short = error.errno is None and _SHORT_WRITE.search(str(error))
        if not short and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFull(
            f"no space is left for {path}; free some, then do the same again (a run with {RESUME})"
        ) from error


@contextmanager
def locked(directory: Path, *, wait: bool) -> Iterator[None]:
    """Hold the lock of a directory. Raise BlockingIOError if it is taken and `wait` is False.

    The operating system frees the lock when the process ends, even if it is killed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def kept_id(path: Path, make: Callable[[], str]) -> str:
    """Return the id that a file keeps. If there is none, make one and keep it."""
    if not path.exists():
        write_atomically(path, make())
    return path.read_text()

"""Write files and directories so that no reader finds a partial one, even after a crash."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync(path.parent)


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary directory to fill; it replaces `path` once it is complete on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # a run that was killed may have left it
    temporary.mkdir()
    try:
        yield temporary
    except OSError:  # the disk may be full
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    for entry in (*temporary.rglob("*"), temporary):
        sync(entry)
    old = path.with_name(f".{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():  # unlike a file, a directory cannot be replaced by one rename
        path.rename(old)
    temporary.rename(path)
    sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


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

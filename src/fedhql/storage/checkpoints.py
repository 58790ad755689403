"""Checkpoints of one cell: complete or absent, and never more than a small share of the run."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedhql.storage.files import whole_directory

SHARE_OF_RUN = 0.02


def latest_checkpoint(directory: Path) -> Path | None:
    return max(directory.glob("round-*"), default=None)


class Checkpoints:
    """A directory of checkpoints, of which the newest counts and only it is kept."""

    def __init__(self, directory: Path, clock: Callable[[], float]) -> None:
        self._directory = directory
        self._clock = clock
        self._next_due = clock()
        self.seconds_spent = 0.0

    def latest(self) -> Path | None:
        return latest_checkpoint(self._directory)

    def due(self) -> bool:
        """Whether waiting since the last one has paid for the next."""
        return self._clock() >= self._next_due

    @contextmanager
    def write(self, round_number: int) -> Iterator[Path]:
        begun = self._clock()
        target = self._directory / f"round-{round_number:09d}"
        with whole_directory(target) as temporary:
            yield temporary
        for older in self._directory.glob("round-*"):
            if older != target:
                shutil.rmtree(older)
        ended = self._clock()
        self.seconds_spent += ended - begun
        self._next_due = ended + (ended - begun) / SHARE_OF_RUN

    def discard(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

"""Checkpoints of one cell: each is complete or absent, and writing takes about 2 % of a run."""

import logging
import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedhql.errors import DiskFull
from fedhql.storage.files import whole_directory

log = logging.getLogger(__name__)

SHARE_OF_RUN = 0.02


class Pacing:
    """Space out repeated work so that it takes at most SHARE_OF_RUN of the time."""

    def __init__(self, clock: Callable[[], float], *, min_pause: float = 0.0) -> None:
        """Make the first piece of work due at once. Pauses last at least `min_pause` seconds."""
        self._clock, self._min_pause = clock, min_pause
        self._next_due = -math.inf

    def due(self) -> bool:
        return self._clock() >= self._next_due

    def postpone(self, seconds: float) -> None:
        self._next_due = self._clock() + seconds

    def finished(self, begun: float) -> float:
        """Start the pause after work that began at `begun`; return the seconds it took."""
        ended = self._clock()
        self._next_due = ended + max((ended - begun) / SHARE_OF_RUN, self._min_pause)
        return ended - begun


def latest_checkpoint(directory: Path) -> Path | None:
    return max(directory.glob("round-*"), default=None)


class Checkpoints:
    """A directory that keeps only the newest checkpoint."""

    def __init__(self, directory: Path, clock: Callable[[], float]) -> None:
        self._directory = directory
        self._clock = clock
        self._pacing = Pacing(clock)
        self.seconds_spent = 0.0

    def latest(self) -> Path | None:
        return latest_checkpoint(self._directory)

    def due(self) -> bool:
        return self._pacing.due()

    @contextmanager
    def write(self, round_number: int) -> Iterator[Path]:
        """Yield a directory to fill; it becomes the latest checkpoint when the block ends.

        If the disk is full, warn and keep the checkpoint before; raise DiskFull if there is none. A
        new checkpoint stands beside the last until it is complete, so both must fit.
        """
        begun = self._clock()
        target = self._directory / f"round-{round_number:09d}"
        try:
            with whole_directory(target) as temporary:
                yield temporary
        except DiskFull:
            if self.latest() is None:
                raise
            log.warning(
                "no space in %s for a second checkpoint; the run goes on, and would be resumed "
                "from the one before",
                self._directory,
            )
        else:
            for older in self._directory.glob("round-*"):
                if older != target:
                    shutil.rmtree(older)
        self.seconds_spent += self._pacing.finished(begun)

    def discard(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

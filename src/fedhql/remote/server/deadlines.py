"""Deadlines of members' work, and what the server waits for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from fedhql.remote.server.service_settings import ServiceSettings

LOG_AFTER_SECONDS = 10.0  # a wait is logged when it takes this long, and after each doubling


class Work(StrEnum):
    """What a member is late with. The values stand in the journal."""

    ANSWER = "an answer"
    LEARNING = "self-learning"
    CATCHING_UP = "catching up"

    def seconds(self, settings: ServiceSettings) -> float:
        """Return the time that a member has for it."""
        if self is Work.ANSWER:
            return settings.exchange_deadline_seconds
        return settings.learning_deadline_seconds  # improvements take as long as learning


@dataclass
class Wait:
    """Something that the server waits for."""

    what: Callable[[], str]
    names: Callable[[], list[str]]  # of the members it waits for now
    began: float
    since: datetime
    next_log_after: float = LOG_AFTER_SECONDS


class Waits:
    """What the server waits for now. Waits may be nested; the innermost one counts."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: list[Wait] = []

    @property
    def current(self) -> Wait | None:
        return next(iter(self._open[-1:]), None)  # another thread may close it meanwhile

    @contextmanager
    def waiting(
        self, what: str | Callable[[], str], names: Callable[[], list[str]]
    ) -> Iterator[None]:
        said = what if callable(what) else lambda: what
        wait = Wait(said, names, self._clock(), datetime.now(UTC))
        self._open.append(wait)
        try:
            yield
        finally:
            self._open.remove(wait)

    def seconds(self, wait: Wait) -> float:
        """Return how long a wait has lasted."""
        return self._clock() - wait.began

    def to_log(self) -> str | None:
        """Return a line for the log if the current wait takes long; None if it was just logged."""
        wait = self.current
        if wait is None or self.seconds(wait) < wait.next_log_after:
            return None
        wait.next_log_after = 2 * self.seconds(wait)
        names = ", ".join(wait.names()) or "members"
        return f"waiting for {names} since {wait.since:%H:%M:%S} UTC: {wait.what()}"


@dataclass
class _Probation:
    strikes: int = 0
    pause: float = 0.0
    not_before: float = 0.0
    forgiven_at: float = 0.0


class Probations:
    """Pauses for members that missed deadlines.

    Each missed deadline doubles a member's pause. One is forgiven when the member has done its work
    in time for as long as the pause was. So the time that others lose to a member becomes less and
    less, even if it is late only now and then.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._of: dict[str, _Probation] = {}

    def strike(self, name: str, deadline_seconds: float) -> None:
        """Begin a pause, or a longer one."""
        found = self._of.setdefault(name, _Probation())
        found.strikes += 1
        found.pause = deadline_seconds * 2.0 ** min(found.strikes, 20)
        found.not_before = self._clock() + found.pause
        found.forgiven_at = found.not_before + found.pause

    def pauses(self, name: str) -> bool:
        found = self._of.get(name)
        return found is not None and self._clock() < found.not_before

    def did_work(self, name: str) -> None:
        """Forgive a missed deadline if the last one was long ago."""
        found = self._of.get(name)
        if found is None or self._clock() < found.forgiven_at:
            return
        found.strikes -= 1
        found.pause /= 2
        found.forgiven_at = self._clock() + found.pause
        if found.strikes == 0:
            del self._of[name]

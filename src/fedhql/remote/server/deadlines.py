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

    what: str
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
    def waiting(self, what: str, names: Callable[[], list[str]]) -> Iterator[None]:
        wait = Wait(what, names, self._clock(), datetime.now(UTC))
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
        return f"waiting for {names} since {wait.since:%H:%M:%S} UTC: {wait.what}"

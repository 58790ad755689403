"""What happened in a federation: for the log, the status page and the journal."""

import logging
from collections import Counter, deque
from collections.abc import Callable
from datetime import UTC, datetime

from fedhql.remote.server.journal import Journal
from fedhql.remote.server.status import Event
from fedhql.remote.wire_pb2 import Cause

log = logging.getLogger("fedhql.remote.server")
SHOWN = 50  # events on the status page


class EventLog:
    """The events, newest first, and how often connections were refused."""

    def __init__(self, journal: Journal, write: Callable[..., None]) -> None:
        """`write` writes to the journal."""
        self._write = write
        self.events: deque[Event] = deque(journal.events(SHOWN), maxlen=SHOWN)
        self.refused_connections: Counter[str] = Counter()  # by cause, since the server started

    def tell(self, text: str, *, level: str = "info", keep: bool = True) -> None:
        """Log an event and show it on the status page.

        `keep=False` leaves it out of the journal: strangers must not be able to fill the disk.
        """
        event = Event(datetime.now(UTC).isoformat(timespec="seconds"), level, text)
        self.events.appendleft(event)
        log.log(logging.WARNING if level == "warning" else logging.INFO, "%s", text)
        if keep:
            self._write(event=event)

    def refused(self, who: str, why: str, cause: Cause, *, logged: bool) -> None:
        """Count a refused connection, and log it unless it `logged` the same before."""
        self.refused_connections[Cause.Name(cause).lower()] += 1
        if not logged:
            self.tell(f"{who} is refused: {why}", level="warning", keep=False)

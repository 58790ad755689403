"""The server's state for one connection of a member."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from fedhql.remote.server.deadlines import Work
from fedhql.remote.wire import DEFAULT_RECEIVE_BYTES
from fedhql.remote.wire_pb2 import Cause, FromServer, Goodbye, MaskingKey


@dataclass(frozen=True)
class Peer:
    """What is known about the other end of a connection."""

    address: str = ""
    software: str = ""  # as the member gives it
    protocol: str = "1.0"
    receive_bytes: int = DEFAULT_RECEIVE_BYTES  # the largest message that it accepts
    gets_notices: bool = False
    certificate_expires: datetime | None = None
    masking_key: MaskingKey | None = None  # secure aggregation only

    @property
    def in_words(self) -> str:
        """What is known, as the end of a sentence in the log."""
        known = f"{self.software}, protocol {self.protocol}" if self.software else ""
        if (expires := self.certificate_expires) is not None:
            known += f"{', ' if known else ''}certificate valid until {expires:%Y-%m-%d}"
        where = f" from {self.address}" if self.address else ""
        return where + (f" ({known})" if known else "")


UNKNOWN = Peer()


@dataclass(eq=False)
class Session:
    """A connected member. The listener sends what is in `outbox`; None ends the connection."""

    name: str
    applied: int  # the last improvement that the member reported or was sent
    peer: Peer = UNKNOWN
    asked: int = 0  # the number of its unanswered question, or 0; it gets no second one
    piece: int = 0  # the number of an unanswered order that only brings improvements, or 0
    due: dict[Work, float] = field(default_factory=dict)  # when open work is late
    skipped: int = 0  # the most improvements that it has reported as skipped
    missed: int = 0  # deadlines missed in this connection since its last useful report
    heard_at: datetime | None = None  # its last message
    met: set[bytes] = field(default_factory=set)  # public keys of members that it was sent
    outbox: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    farewell: Goodbye | None = None  # with which the server ended the connection

    @property
    def masking_key(self) -> MaskingKey | None:
        return self.peer.masking_key

    def send(self, message: FromServer) -> None:
        self.outbox.put_nowait(message.SerializeToString())

    def end(
        self,
        reason: Goodbye.Reason,
        detail: str,
        cause: Cause,
        *,
        retry_after_seconds: float = 0.0,
    ) -> None:
        self.farewell = Goodbye(
            reason=reason, detail=detail, cause=cause, retry_after_seconds=retry_after_seconds
        )
        self.send(FromServer(goodbye=self.farewell))
        self.outbox.put_nowait(None)

    def unmet(self, cohort: Iterable[MaskingKey]) -> list[MaskingKey]:
        """Return the keys in the cohort that the member has not been sent."""
        return [key for key in cohort if key.public_key not in self.met]

"""The server's state for one connection of a member."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from fedhql.remote.wire_pb2 import FromServer, Goodbye, MaskingKey


@dataclass(eq=False)
class Session:
    """A connected member. The listener sends what is in `outbox`; None ends the connection."""

    name: str
    applied: int  # the last improvement that the member reported or was sent
    masking_key: MaskingKey | None = None  # secure aggregation only
    asked: int = 0  # the number of its unanswered question, or 0; it gets no second one
    met: set[bytes] = field(default_factory=set)  # public keys of members that it was sent
    outbox: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)

    def send(self, message: FromServer) -> None:
        self.outbox.put_nowait(message.SerializeToString())

    def end(self, reason: Goodbye.Reason, detail: str) -> None:
        self.send(FromServer(goodbye=Goodbye(reason=reason, detail=detail)))
        self.outbox.put_nowait(None)

    def unmet(self, cohort: Iterable[MaskingKey]) -> list[MaskingKey]:
        """Return the keys in the cohort that the member has not been sent."""
        return [key for key in cohort if key.public_key not in self.met]

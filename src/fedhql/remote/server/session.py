"""One connection of one member, as the server has it."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from fedhql.remote.wire_pb2 import FromServer, Goodbye, MaskingKey


@dataclass(eq=False)
class Session:
    """What is put into `outbox` is sent; None ends it."""

    name: str
    applied: int  # improvements it has said to have, or was sent
    masking_key: MaskingKey | None = None  # with secure aggregation
    asked: int = 0  # the question it has not answered; it gets no other before it has
    met: set[bytes] = field(default_factory=set)  # others' public keys that it was sent
    outbox: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)

    def send(self, message: FromServer) -> None:
        self.outbox.put_nowait(message.SerializeToString())

    def end(self, reason: Goodbye.Reason, detail: str) -> None:
        self.send(FromServer(goodbye=Goodbye(reason=reason, detail=detail)))
        self.outbox.put_nowait(None)

    def unmet(self, cohort: Iterable[MaskingKey]) -> list[MaskingKey]:
        """Keys that have to go along with a question to this cohort."""
        return [key for key in cohort if key.public_key not in self.met]

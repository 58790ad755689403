"""A member that speaks the protocol message by message, so that tests can make it misbehave."""

import asyncio
from contextlib import suppress
from typing import Any

import grpc
import numpy as np

from fedhql.remote.wire import SERVICE, pack
from fedhql.remote.wire_pb2 import FromMember, FromServer, Goodbye, Hello, Order, Report


class RawMember:
    """Behaves well by default. Subclasses override `on_learn` and `on_query` to misbehave."""

    def __init__(self, address: str, name: str = "eve", *, receive_bytes: int = 4 * 2**20) -> None:
        self.address, self.name, self.receive_bytes = address, name, receive_bytes
        self.applied = self.connections = self.largest_bytes = 0
        self.phase: tuple[int, int] = (0, 0)
        self.federation, self.actions = "", 0
        self.improvements: list[int] = []  # the numbers it was sent, in order
        self.goodbyes: list[Goodbye] = []
        self.notices: list[Any] = []
        self.errors: list[str] = []
        self.call: Any = None
        self._writing = asyncio.Lock()

    async def run(self) -> None:
        """Connect again and again, as a member does, until the server says it is over."""
        while not any(goodbye.reason != Goodbye.STOPPED for goodbye in self.goodbyes):
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the stream has ended
                await self.connect()
            await asyncio.sleep(0.2)

    async def connect(self) -> None:
        """Run one connection."""
        options = [
            ("grpc.max_receive_message_length", self.receive_bytes),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        async with grpc.aio.insecure_channel(self.address, options) as channel:
            self.call = channel.stream_stream(f"/{SERVICE}/Join")()
            self.connections += 1
            hello = Hello(
                protocol=1, minor=1, name=self.name, federation=self.federation,
                applied_improvements=self.applied, most_message_bytes=self.receive_bytes,
                capabilities=["notices"], software="raw 1",
            )  # fmt: skip
            await self.send(FromMember(hello=hello))
            try:
                await self.converse()
            except grpc.aio.AioRpcError as error:
                self.errors.append(f"{error.code().name}: {error.details()}")
                raise

    async def send(self, message: FromMember) -> None:
        async with self._writing:  # gRPC takes one message at a time
            await self.call.write(message.SerializeToString())

    async def converse(self) -> None:
        while (content := await self.call.read()) is not grpc.aio.EOF:
            self.largest_bytes = max(self.largest_bytes, len(content))
            message = FromServer.FromString(content)
            match message.WhichOneof("message"):
                case "welcome":
                    self.actions = message.welcome.task.actions
                    if not self.federation:
                        self.applied = message.welcome.improvements
                    self.federation = message.welcome.federation
                case "order":
                    await self.on_order(message.order)
                case "notice":
                    self.notices.append(message.notice)
                case "goodbye":
                    self.goodbyes.append(message.goodbye)
                    if message.goodbye.reason == Goodbye.FINISHED:
                        await self.send(FromMember(goodbye=Goodbye(reason=Goodbye.FINISHED)))

    async def on_order(self, order: Order) -> None:
        self.applied = max(self.applied, order.skip_through)
        for improvement in order.improvements:
            if improvement.number > self.applied:
                assert improvement.number == self.applied + 1, "a gap"
                self.improvements.append(improvement.number)
                self.applied = improvement.number
        match order.WhichOneof("work"):
            case "learn":
                await self.on_learn(order)
            case "query":
                await self.on_query(order)
            case None:
                await self.report(Report(id=order.id))

    async def on_learn(self, order: Order) -> None:
        self.phase = (order.learn.phase, order.learn.env_steps)
        await self.report(
            Report(id=order.id, phase=self.phase[0], phase_env_steps=order.learn.env_steps)
        )

    async def on_query(self, order: Order) -> None:
        rows = order.query.states.shape[0]
        values = np.zeros((rows, self.actions), dtype=np.float32)
        await self.report(Report(id=order.id, values=pack(values)))

    async def report(self, report: Report) -> None:
        report.applied_improvements = self.applied
        await self.send(FromMember(report=report))

"""A TCP proxy that simulates a bad network: cuts, delays and half-open connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Proxy:
    """Forwards bytes from its own port to another; tests can delay, stall or cut it."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._connections: set[asyncio.Task[None]] = set()
        self._stalled: set[asyncio.Task[None]] = set()
        self.delay_seconds = 0.0
        self.accepted = 0
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Close every open connection. New connections are still accepted."""
        for connection in self._connections:
            connection.cancel()

    def stall(self) -> None:
        """Keep every open connection open, but forward nothing more on it."""
        self._stalled |= self._connections

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        self.accepted += 1
        writers = [writer]
        try:
            target_reader, target_writer = await asyncio.open_connection(
                "127.0.0.1", self._target_port
            )
            writers.append(target_writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forward(connection, reader, target_writer))
                group.create_task(self._forward(connection, target_reader, writer))
        except* (OSError, _Closed):
            pass
        finally:
            self._connections.discard(connection)
            self._stalled.discard(connection)
            for each in writers:
                each.transport.abort()

    async def _forward(
        self,
        connection: "asyncio.Task[None]",
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
    ) -> None:
        while data := await source.read(65_536):
            await asyncio.sleep(self.delay_seconds)
            while connection in self._stalled:
                await asyncio.sleep(0.01)
            target.write(data)
            await target.drain()
        raise _Closed


class _Closed(Exception):
    """One of the two sides has closed the connection."""


@asynccontextmanager
async def proxy_to(port: int) -> AsyncIterator[Proxy]:
    proxy = Proxy(port)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):
            await proxy.accept(reader, writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
        await server.wait_closed()

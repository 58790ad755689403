"""The listener: accepts connections and serves each one from its Hello to its end."""

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import grpc

from fedhql.errors import CredentialsError, SettingsError
from fedhql.remote.identity.credentials import Credentials, server_credentials
from fedhql.remote.server.admission import (
    Refused,
    accepted_masking_key,
    certified,
    expiry,
    is_about_to_expire,
    require_name,
    require_welcome,
    revoked_serials,
)
from fedhql.remote.server.rate_limit import MemberLimits, new_limits
from fedhql.remote.server.roster import Roster
from fedhql.remote.server.session import Session
from fedhql.remote.server.status import printable
from fedhql.remote.wire import WireError, channel_options, join_handler
from fedhql.remote.wire_pb2 import FromMember, FromServer, Goodbye, Hello, Task, Welcome

HELLO_SECONDS = 10.0
GOODBYE_SECONDS = 2.0  # how long a peer that is disconnected may take to read its Goodbye
LOOK_SECONDS = 2.0  # interval between checks for revoked certificates and stuck connections
STREAMS = 4  # the most in one connection; a member needs one


@dataclass
class _Connection:
    """The connection of a session."""

    serial: int  # of the certificate
    expires: datetime | None  # when other members start to reject it; secure aggregation only
    write_timeout: asyncio.Timeout  # set once the session is over


def is_loopback(address: str) -> bool:
    """Return whether HOST:PORT is a loopback address. A host like 127.0.0.1.nip.io is remote."""
    host, _, _ = address.rpartition(":")
    if host == "localhost":
        return True
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        return False  # IPv6 without brackets: the port is ambiguous
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _why_not_bound(address: str) -> str | None:
    """Bind to the address once more to get the reason, which gRPC does not give."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_server((host.strip("[]"), int(port))).close()
    except (OSError, ValueError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


class Listener:
    """Listens, admits members, and passes messages between their streams and the roster."""

    def __init__(
        self,
        roster: Roster,
        *,
        federation: str,
        task: Task,
        credentials: Credentials | None,
        revoked: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a listener. Without credentials it uses plaintext, on loopback addresses only."""
        self._roster, self._federation, self._task = roster, federation, task
        self._credentials, self._revoked, self._clock = credentials, revoked, clock
        self._connections: dict[Session, _Connection] = {}
        self._limits: dict[str, MemberLimits] = {}
        self._watch: asyncio.Task[None] | None = None
        settings = roster.settings
        options = channel_options(
            most_bytes=settings.most_message_bytes, keepalive_seconds=settings.keepalive_seconds
        )
        # Two servers on one port would each get some of the members, so we forbid a shared port.
        options += [("grpc.so_reuseport", 0), ("grpc.max_concurrent_streams", STREAMS)]
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((join_handler(self._join),))

    async def open(self, address: str) -> int:
        """Listen at the address and return the port.

        Raise SettingsError if the port cannot be bound, or if the address is not loopback and
        there are no credentials.
        """
        if self._credentials is None and not is_loopback(address):
            raise SettingsError(
                f"--listen {address}: without certificates only this machine may connect "
                "(127.0.0.1, [::1]); see fedhql certs"
            )
        try:
            if self._credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, server_credentials(self._credentials))
        except RuntimeError as error:
            why = _why_not_bound(address) or str(error)
            raise SettingsError(f"--listen {address}: cannot listen there ({why})") from error
        await self._server.start()
        self._watch = asyncio.create_task(self._watch_connections())
        return port

    async def close(self, grace_seconds: float = 2.0) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await self._server.stop(grace_seconds)

    async def _join(self, requests: Any, context: Any) -> None:
        """Serve one connection. Nothing that the peer sends or does affects other members."""
        peer, name = context.peer(), ""
        try:
            name, serial = certified(context, self._credentials, self._revoked)
            name, hello = await self._receive_hello(name, requests)
            self._require_connection_rate(name)
            require_welcome(name, hello, self._roster, self._federation)
            masking_key = accepted_masking_key(name, hello, self._roster, self._credentials)
        except Refused as error:
            if not error.logged:
                who = f"{name} at {peer}" if name else peer
                self._roster.tell(f"{who} is refused: {error}", level="warning", keep=False)
            goodbye = Goodbye(reason=error.reason, detail=str(error))
            # The peer may have gone, or may not read. Then the Goodbye is lost, which is harmless.
            with suppress(TimeoutError, grpc.aio.InternalError):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await context.write(FromServer(goodbye=goodbye).SerializeToString())
            return
        except asyncio.CancelledError:  # gRPC cancels this call when the peer disconnects
            text = f"{peer} disconnected before its Hello: {self._broken}"
            self._roster.tell(text, level="warning", keep=False)
            raise
        session = self._roster.admit(
            name,
            hello.applied_improvements,
            is_new=not hello.federation,
            welcome=self._welcome,
            masking_key=masking_key,
        )
        reading = asyncio.ensure_future(self._read(session, requests))
        why = self._broken
        try:
            async with asyncio.timeout(None) as write_timeout:
                self._connections[session] = _Connection(serial, expiry(masking_key), write_timeout)
                while (message := await session.outbox.get()) is not None:
                    await context.write(message)
            if not reading.done():
                why = "the server disconnected it"
        except TimeoutError:
            why = "it does not read the messages sent to it"
            self._roster.tell(f"{name} is disconnected: {why}", level="warning")
        finally:
            reading.cancel()
            del self._connections[session]
            self._roster.leave(session, why)
        if write_timeout.expired():
            # The peer sees this status only if it reads on. We do not wait for that.
            await context.abort(grpc.StatusCode.ABORTED, why)

    @property
    def _broken(self) -> str:
        """The possible reasons why a stream ended without a Goodbye; gRPC does not say which."""
        most = self._roster.settings.most_message_bytes
        return f"the connection broke, or a message was larger than {most:,} bytes"

    async def _receive_hello(self, name: str, requests: Any) -> tuple[str, Hello]:
        """Wait for the Hello; return the member's name and the Hello.

        `name` is the name in the certificate; if it is empty, the name in the Hello counts. Raise
        Refused if no valid Hello arrives in time.
        """
        try:
            first: FromMember = await asyncio.wait_for(anext(requests), HELLO_SECONDS)
        except TimeoutError as error:
            why = f"no Hello arrived within {HELLO_SECONDS:g} seconds"
            raise Refused(why, Goodbye.STOPPED) from error
        except StopAsyncIteration as error:
            raise Refused(f"no Hello arrived: {self._broken}", Goodbye.STOPPED) from error
        except WireError as error:
            raise Refused(str(error)) from error
        if first.WhichOneof("message") != "hello":
            raise Refused("the first message must be a Hello")
        hello = first.hello
        if not name:
            name = hello.name
            require_name(name)
        elif hello.name and hello.name != name:
            raise Refused(
                f"the certificate is for {name}, but the Hello gives the name {hello.name[:64]!r}"
            )
        return name, hello

    def _require_connection_rate(self, name: str) -> None:
        """Raise Refused if the member connects too often."""
        limits = self._limits_of(name)
        if limits.connections.take():
            limits.exceeded = False
            return
        logged, limits.exceeded = limits.exceeded, True
        why = f"{name} connects too often; try again later"
        raise Refused(why, Goodbye.STOPPED, logged=logged)

    def _limits_of(self, name: str) -> MemberLimits:
        if name not in self._limits:
            rate = self._roster.settings.most_messages_per_second
            self._limits[name] = new_limits(rate, self._clock)
        return self._limits[name]

    async def _watch_connections(self) -> None:
        last_error = ""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._limit_ended_sessions()
            expiring = [s for s, c in self._connections.items() if is_about_to_expire(c.expires)]
            for session in expiring:
                why = f"the certificate of {session.name} expires too soon; renew it"
                self._roster.expel(session, why)
            try:
                revoked = revoked_serials(self._credentials, self._revoked)
            except CredentialsError as error:
                # Connected members passed the check against an older list, so they may stay.
                if last_error != (last_error := str(error)):  # log a repeated error once
                    self._roster.tell(last_error, level="warning")
                continue
            for session in [s for s, c in self._connections.items() if c.serial in revoked]:
                self._roster.expel(session, f"the certificate of {session.name} is revoked")

    def _limit_ended_sessions(self) -> None:
        """Give each connection whose session is over GOODBYE_SECONDS to read its last messages."""
        until = asyncio.get_running_loop().time() + GOODBYE_SECONDS
        for session, connection in self._connections.items():
            over = self._roster.sessions.get(session.name) is not session
            if over and connection.write_timeout.when() is None:
                connection.write_timeout.reschedule(until)

    def _welcome(self, improvements: int) -> Welcome:
        return Welcome(
            federation=self._federation,
            task=self._task,
            improvements=improvements,
            most_states=self._roster.settings.most_states,
            secure_value_bound=self._roster.secure_value_bound or 0.0,
        )

    async def _read(self, session: Session, requests: Any) -> None:
        limit = self._limits_of(session.name).messages
        most = self._roster.settings.most_messages_per_second
        try:
            async for message in requests:
                if not limit.take():
                    raise WireError(f"too many messages; allowed: {most:g} per second")
                match message.WhichOneof("message"):
                    case "report":
                        self._roster.report(session, message.report)
                    case "goodbye":
                        detail = printable(message.goodbye.detail, 200)
                        self._roster.tell(f"{session.name} says goodbye: {detail}")
                        if message.goodbye.reason == Goodbye.FINISHED:
                            self._roster.parted(session)
                        self._roster.leave(session, "it said goodbye")
                        break
                    case other:
                        raise WireError(f"expected a report, got {other or 'an empty message'}")
        except WireError as error:
            self._roster.tell(f"{session.name} is disconnected: {error}", level="warning")
            self._roster.expel(session, str(error))
        finally:
            session.outbox.put_nowait(None)

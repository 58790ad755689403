"""The open port: connections, each from its first message to its last."""

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
from fedhql.remote.server.rate_limit import MemberLimits, RateLimit
from fedhql.remote.server.roster import Roster
from fedhql.remote.server.session import Session
from fedhql.remote.server.status import printable
from fedhql.remote.wire import WireError, channel_options, join_handler
from fedhql.remote.wire_pb2 import FromMember, FromServer, Goodbye, Hello, Task, Welcome

HELLO_SECONDS = 10.0
GOODBYE_SECONDS = 2.0  # for one that has to go to read the last it was sent
LOOK_SECONDS = 2.0  # between looks at the list of revoked certificates, and at who does not go
CONNECTIONS_AT_ONCE, CONNECTIONS_PER_SECOND = 20, 1.0  # of one member, whatever breaks
STREAMS = 4  # in one connection, where a member needs one


@dataclass
class _Visit:
    """A session's connection."""

    serial: int  # of the certificate
    expires: datetime | None  # the one that others check, with secure aggregation
    patience: asyncio.Timeout  # with its reading what it is sent


def is_loopback(address: str) -> bool:
    """Whether HOST:PORT is this machine; a name that only begins like its own is another's."""
    host, _, _ = address.rpartition(":")
    if host == "localhost":
        return True
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        return False  # where its port begins, nobody knows
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _why_not_bound(address: str) -> str | None:
    """gRPC says only that it could not."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_server((host.strip("[]"), int(port))).close()
    except (OSError, ValueError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


class Listener:
    """Listens, lets members in, and carries messages between their streams and the roster."""

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
        """No credentials: plaintext, which is for this machine alone."""
        self._roster, self._federation, self._task = roster, federation, task
        self._credentials, self._revoked, self._clock = credentials, revoked, clock
        self._visits: dict[Session, _Visit] = {}
        self._limits: dict[str, MemberLimits] = {}
        self._watch: asyncio.Task[None] | None = None
        settings = roster.settings
        options = channel_options(
            most_bytes=settings.most_message_bytes, keepalive_seconds=settings.keepalive_seconds
        )
        # Not a port that another server listens on: each would get some of the members.
        options += [("grpc.so_reuseport", 0), ("grpc.max_concurrent_streams", STREAMS)]
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((join_handler(self._join),))

    async def open(self, address: str) -> int:
        """Listen -> the port. Others than this machine only with mutual TLS."""
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
            raise SettingsError(f"--listen {address}: cannot be listened on ({why})") from error
        await self._server.start()
        self._watch = asyncio.create_task(self._look_after())
        return port

    async def close(self, grace_seconds: float = 2.0) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await self._server.stop(grace_seconds)

    async def _join(self, requests: Any, context: Any) -> None:
        """One connection. However it ends, and whatever it sends, the others do not notice."""
        peer, name = context.peer(), ""
        try:
            name, serial = certified(context, self._credentials, self._revoked)
            name, hello = await self._heard(name, requests)
            self._require_allowed(name)
            require_welcome(name, hello, self._roster, self._federation)
            masking_key = accepted_masking_key(name, hello, self._roster, self._credentials)
        except Refused as error:
            if not error.told:
                who = f"{name} at {peer}" if name else peer
                self._roster.tell(f"{who} is refused: {error}", level="warning", keep=False)
            goodbye = Goodbye(reason=error.reason, detail=str(error))
            # It may have gone, or not read; then it does not matter.
            with suppress(TimeoutError, grpc.aio.InternalError):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await context.write(FromServer(goodbye=goodbye).SerializeToString())
            return
        except asyncio.CancelledError:  # how gRPC tells us that it has gone
            self._roster.tell(
                f"{peer} left before a Hello: {self._broken}", level="warning", keep=False
            )
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
            async with asyncio.timeout(None) as patience:
                self._visits[session] = _Visit(serial, expiry(masking_key), patience)
                while (message := await session.outbox.get()) is not None:
                    await context.write(message)
            if not reading.done():
                why = "it was sent away"
        except TimeoutError:
            why = "it does not read what it is sent"
            self._roster.tell(f"{name} is cut off: {why}", level="warning")
        finally:
            reading.cancel()
            del self._visits[session]
            self._roster.leave(session, why)
        if patience.expired():
            # This, too, reaches it when it reads on, or never; but nothing of ours waits for it.
            await context.abort(grpc.StatusCode.ABORTED, why)

    @property
    def _broken(self) -> str:
        """All that gRPC lets a server know when a stream ends without a Goodbye."""
        most = self._roster.settings.most_message_bytes
        return f"it broke off, or sent a message above {most:,} bytes"

    async def _heard(self, name: str, requests: Any) -> tuple[str, Hello]:
        """Who it is, by its certificate or else by its first message; and that message."""
        try:
            first: FromMember = await asyncio.wait_for(anext(requests), HELLO_SECONDS)
        except TimeoutError as error:
            why = f"no Hello within {HELLO_SECONDS:g} seconds"
            raise Refused(why, Goodbye.STOPPED) from error
        except StopAsyncIteration as error:
            raise Refused(f"no Hello: {self._broken}", Goodbye.STOPPED) from error
        except WireError as error:
            raise Refused(str(error)) from error
        if first.WhichOneof("message") != "hello":
            raise Refused("the first message must be a Hello")
        hello = first.hello
        if not name:
            name = hello.name
            require_name(name)
        elif hello.name and hello.name != name:
            raise Refused(f"the certificate is {name}'s, the name given is {hello.name[:64]!r}")
        return name, hello

    def _require_allowed(self, name: str) -> None:
        """Not too often."""
        limits = self._limits_of(name)
        if limits.connections.take():
            limits.exceeded = False
            return
        told, limits.exceeded = limits.exceeded, True
        raise Refused(f"{name} connects too often; come again later", Goodbye.STOPPED, told=told)

    def _limits_of(self, name: str) -> MemberLimits:
        if name not in self._limits:
            rate = self._roster.settings.most_messages_per_second
            self._limits[name] = MemberLimits(
                RateLimit(CONNECTIONS_PER_SECOND, CONNECTIONS_AT_ONCE, self._clock),
                RateLimit(rate, max(2 * rate, 1), self._clock),
            )
        return self._limits[name]

    async def _look_after(self) -> None:
        wrong = ""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._lose_patience()
            for session in [s for s, v in self._visits.items() if is_about_to_expire(v.expires)]:
                self._roster.expel(session, f"the certificate of {session.name} expires")
            try:
                revoked = revoked_serials(self._credentials, self._revoked)
            except CredentialsError as error:  # said once; who is here was trusted by an older one
                if wrong != (wrong := str(error)):
                    self._roster.tell(wrong, level="warning")
                continue
            # Whoever is on the list now has to go, not only when it comes the next time.
            for session in [s for s, visit in self._visits.items() if visit.serial in revoked]:
                self._roster.expel(session, f"the certificate of {session.name} is revoked")

    def _lose_patience(self) -> None:
        """With those whose session is over, and who do not read that it is."""
        until = asyncio.get_running_loop().time() + GOODBYE_SECONDS
        for session, visit in self._visits.items():
            over = self._roster.sessions.get(session.name) is not session
            if over and visit.patience.when() is None:
                visit.patience.reschedule(until)

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
        try:
            async for message in requests:
                if not limit.take():
                    raise WireError("too many messages")
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
                        raise WireError(f"{other or 'an empty message'} where a report should be")
        except WireError as error:
            self._roster.tell(f"{session.name} is cut off: {error}", level="warning")
            self._roster.expel(session, str(error))
        finally:
            session.outbox.put_nowait(None)

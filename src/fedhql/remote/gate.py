"""The open port: who may come in, one connection from its first message to its last."""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from fedhql.errors import CredentialsError, SettingsError
from fedhql.remote.credentials import Credentials, is_revoked, peer_of, server_credentials
from fedhql.remote.hub import Hub, Session
from fedhql.remote.wire import PROTOCOL, WireError, channel_options, join_handler
from fedhql.remote.wire_pb2 import FromMember, FromServer, Goodbye, Hello, Task, Welcome

log = logging.getLogger(__name__)
HELLO_SECONDS = 10.0
REVOKED_SECONDS = 2.0  # between looks at the list of revoked certificates
LOOPBACK = ("127.", "localhost", "[::1]", "::1")


class _Refused(Exception):
    """Why somebody is not let in; both sides log it."""

    def __init__(self, why: str, reason: Goodbye.Reason = Goodbye.REFUSED) -> None:
        super().__init__(why)
        self.reason = reason  # STOPPED: it may try again


class _RateLimit:
    """A bucket that fills at `per_second` and holds two seconds' worth."""

    def __init__(self, per_second: float, clock: Callable[[], float]) -> None:
        self._per_second, self._clock = per_second, clock
        self._left, self._at = 2 * per_second, clock()

    def take(self) -> bool:
        now = self._clock()
        self._left = min(2 * self._per_second, self._left + (now - self._at) * self._per_second)
        self._at = now
        self._left -= 1
        return self._left >= 0


class Gate:
    """Listens, lets members in, and carries messages between their streams and the hub."""

    def __init__(
        self,
        hub: Hub,
        *,
        federation: str,
        task: Task,
        credentials: Credentials | None,
        revoked: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """No credentials: plaintext, which is for this machine alone."""
        self._hub, self._federation, self._task = hub, federation, task
        self._credentials, self._revoked, self._clock = credentials, revoked, clock
        self._serials: dict[Session, int] = {}  # of certificates, of those who are here
        self._watch: asyncio.Task[None] | None = None
        settings = hub.settings
        options = channel_options(
            most_bytes=settings.most_message_bytes, keepalive_seconds=settings.keepalive_seconds
        )
        # Not a port that another server listens on: each would get some of the members.
        self._server = grpc.aio.server(options=[*options, ("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((join_handler(self._join),))

    async def open(self, address: str) -> int:
        """Listen -> the port. Others than this machine only with mutual TLS."""
        if self._credentials is None and not address.startswith(LOOPBACK):
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
            raise SettingsError(f"--listen {address}: cannot be listened on ({error})") from error
        await self._server.start()
        if self._credentials is not None and self._revoked is not None:
            self._watch = asyncio.create_task(self._watch_revoked())
        return port

    async def close(self, grace_seconds: float = 2.0) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await self._server.stop(grace_seconds)

    async def _join(self, requests: Any, context: Any) -> None:
        """One connection. However it ends, and whatever it sends, the others do not notice."""
        try:
            name, serial = self._certified(context)
            name, hello = await self._heard(name, requests)
            self._require_welcome(name, hello)
        except _Refused as error:
            self._hub.tell(f"{context.peer()} is refused: {error}", level="warning", keep=False)
            goodbye = Goodbye(reason=error.reason, detail=str(error))
            await context.write(FromServer(goodbye=goodbye).SerializeToString())
            return
        session = self._hub.admit(
            name,
            hello.applied_improvements,
            is_new=not hello.federation,
            welcome=self._welcome,
        )
        self._serials[session] = serial
        reading = asyncio.ensure_future(self._read(session, requests))
        try:
            while (message := await session.outbox.get()) is not None:
                await context.write(message)
        finally:
            reading.cancel()
            del self._serials[session]
            self._hub.leave(session, "the connection ended")

    async def _heard(self, name: str, requests: Any) -> tuple[str, Hello]:
        """Who it is, by its certificate or else by its first message; and that message."""
        try:
            first: FromMember = await asyncio.wait_for(anext(requests), HELLO_SECONDS)
        except (TimeoutError, StopAsyncIteration) as error:
            why = f"no Hello within {HELLO_SECONDS:g} seconds"
            raise _Refused(why, Goodbye.STOPPED) from error
        except WireError as error:
            raise _Refused(str(error)) from error
        if first.WhichOneof("message") != "hello":
            raise _Refused("the first message must be a Hello")
        hello = first.hello
        if not name:
            name = hello.name
        elif hello.name and hello.name != name:
            raise _Refused(f"the certificate is {name}'s, the name given is {hello.name[:64]!r}")
        if not name or len(name) > 64 or not name.isprintable():
            raise _Refused("a member needs a name of 1 to 64 printable characters")
        return name, hello

    def _certified(self, context: Any) -> tuple[str, int]:
        """Name and serial; of nobody if there is no TLS."""
        if self._credentials is None:
            return "", 0
        try:
            name, serial = peer_of(context.auth_context()["x509_pem_cert"][0])
        except CredentialsError as error:
            raise _Refused(str(error)) from error
        try:
            revoked = self._is_revoked(serial)
        except CredentialsError as error:  # nobody comes in on a list that cannot be trusted
            why = f"the list of revoked certificates cannot be used: {error}"
            raise _Refused(why, Goodbye.STOPPED) from error
        if revoked:
            raise _Refused(f"the certificate of {name} (serial {serial:x}) is revoked")
        return name, serial

    def _is_revoked(self, serial: int) -> bool:
        if self._credentials is None or self._revoked is None:
            return False
        return is_revoked(self._revoked, self._credentials.authority, serial)

    async def _watch_revoked(self) -> None:
        """Whoever is on the list now has to go, not only when it comes the next time."""
        wrong = ""
        while True:
            await asyncio.sleep(REVOKED_SECONDS)
            try:
                revoked = [s for s, serial in self._serials.items() if self._is_revoked(serial)]
            except CredentialsError as error:  # said once; who is here was trusted by an older one
                if wrong != (wrong := str(error)):
                    self._hub.tell(wrong, level="warning")
                continue
            for session in revoked:
                self._hub.expel(session, f"the certificate of {session.name} is revoked")

    def _require_welcome(self, name: str, hello: Hello) -> None:
        hub = self._hub
        if hello.protocol != PROTOCOL:
            raise _Refused(f"{name} speaks protocol {hello.protocol}, this server {PROTOCOL}")
        if hub.settings.members and name not in hub.settings.members:
            raise _Refused(f"{name} is not among the members of this federation")
        if hello.federation not in ("", self._federation):
            raise _Refused(
                f"{name} belongs to federation {hello.federation[:64]}, this is "
                f"{self._federation}; a member needs a --home for each"
            )
        if hello.applied_improvements > hub.improvements:
            raise _Refused(
                f"{name} has applied {hello.applied_improvements} improvements, this server has "
                f"sent {hub.improvements}: it may have lost its journal"
            )
        if (member := hub.members.get(name)) is not None and member.quarantined:
            raise _Refused(f"{name} is quarantined: {member.quarantined}")

    def _welcome(self, improvements: int) -> Welcome:
        return Welcome(
            federation=self._federation,
            task=self._task,
            improvements=improvements,
            most_states=self._hub.settings.most_states,
        )

    async def _read(self, session: Session, requests: Any) -> None:
        limit = _RateLimit(self._hub.settings.most_messages_per_second, self._clock)
        try:
            async for message in requests:
                if not limit.take():
                    raise WireError("too many messages")
                match message.WhichOneof("message"):
                    case "report":
                        self._hub.report(session, message.report)
                    case "goodbye":
                        detail = message.goodbye.detail[:200]
                        self._hub.tell(f"{session.name} says goodbye: {detail}")
                        if message.goodbye.reason == Goodbye.FINISHED:
                            self._hub.parted(session)
                        break
                    case other:
                        raise WireError(f"{other or 'an empty message'} where a report should be")
        except WireError as error:
            self._hub.tell(f"{session.name} is cut off: {error}", level="warning")
            self._hub.expel(session, str(error))
        except grpc.aio.AioRpcError as error:  # a message too large, or bytes that are none
            log.info("%s: %s", session.name, error.details())
        finally:
            session.outbox.put_nowait(None)

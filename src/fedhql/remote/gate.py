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
LOOPBACK = ("127.", "localhost", "[::1]", "::1")


class _Refused(Exception):
    """Why somebody is not let in; both sides log it."""


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
        settings = hub.settings
        self._server = grpc.aio.server(
            options=channel_options(
                most_bytes=settings.most_message_bytes,
                keepalive_seconds=settings.keepalive_seconds,
            )
        )
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
        return port

    async def close(self, grace_seconds: float = 2.0) -> None:
        await self._server.stop(grace_seconds)

    async def _join(self, requests: Any, context: Any) -> None:
        """One connection. However it ends, and whatever it sends, the others do not notice."""
        try:
            name, hello = await self._heard(requests, context)
            self._require_welcome(name, hello)
        except _Refused as error:
            self._hub.tell(f"{context.peer()} is refused: {error}", level="warning", keep=False)
            goodbye = Goodbye(reason=Goodbye.REFUSED, detail=str(error))
            await context.write(FromServer(goodbye=goodbye))
            return
        if self._hub.members.get(name) and self._hub.members[name].finished:
            goodbye = Goodbye(reason=Goodbye.FINISHED, detail="its budget is spent")
            await context.write(FromServer(goodbye=goodbye))
            return
        session = self._hub.admit(
            name,
            hello.applied_improvements,
            is_new=not hello.federation,
            welcome=self._welcome,
        )
        reading = asyncio.ensure_future(self._read(session, requests))
        try:
            while (message := await session.outbox.get()) is not None:
                await context.write(message)
        finally:
            reading.cancel()
            self._hub.leave(session, "the connection ended")

    async def _heard(self, requests: Any, context: Any) -> tuple[str, Hello]:
        """Who it is, by its certificate, and its first message."""
        name = self._certified(context)
        try:
            first: FromMember = await asyncio.wait_for(anext(requests), HELLO_SECONDS)
        except (TimeoutError, StopAsyncIteration) as error:
            raise _Refused(f"no Hello within {HELLO_SECONDS:g} seconds") from error
        if first.WhichOneof("message") != "hello":
            raise _Refused("the first message must be a Hello")
        hello = first.hello
        if name is None:
            name = hello.name
        elif hello.name and hello.name != name:
            raise _Refused(f"the certificate is {name}'s, the name given is {hello.name[:64]!r}")
        if not name or len(name) > 64 or not name.isprintable():
            raise _Refused("a member needs a name of 1 to 64 printable characters")
        return name, hello

    def _certified(self, context: Any) -> str | None:
        if self._credentials is None:
            return None
        (pem,) = context.auth_context()["x509_pem_cert"]
        name, serial = peer_of(pem)
        if self._revoked is not None:
            try:
                revoked = is_revoked(self._revoked, self._credentials.authority, serial)
            except CredentialsError as error:  # nobody comes in on a list that cannot be trusted
                raise _Refused(
                    f"the list of revoked certificates cannot be used: {error}"
                ) from error
            if revoked:
                raise _Refused(f"the certificate of {name} (serial {serial:x}) is revoked")
        return name

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
        reason, detail = Goodbye.REFUSED, ""
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
                        break
                    case other:
                        raise WireError(f"{other or 'an empty message'} where a report should be")
        except WireError as error:
            self._hub.tell(f"{session.name} is cut off: {error}", level="warning")
            session.end(reason, str(error))
            return
        except grpc.aio.AioRpcError as error:  # a message too large, or bytes that are none
            log.info("%s: %s", session.name, error.details())
        finally:
            session.outbox.put_nowait(None)

"""The listener: accepts connections and serves each one from its Hello to its end."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from fedhql.errors import CredentialsError, SettingsError
from fedhql.remote.identity.credentials import Credentials, server_credentials
from fedhql.remote.server.address import is_loopback, why_not_bound
from fedhql.remote.server.admission import (
    Refused,
    accepted_masking_key,
    certified,
    expiry,
    is_about_to_expire,
    peer_of_hello,
    receive_hello,
    require_welcome,
    revoked_serials,
    status_of,
)
from fedhql.remote.server.rate_limit import CONNECTIONS_PER_SECOND, MemberLimits, new_limits
from fedhql.remote.server.roster import Roster
from fedhql.remote.server.session import Session
from fedhql.remote.server.status import printable
from fedhql.remote.wire import (
    MINOR,
    SERVICE,
    SOFTWARE,
    WireError,
    channel_options,
    join_handler,
)
from fedhql.remote.wire_pb2 import (
    Cause,
    FromServer,
    Goodbye,
    Limits,
    Task,
    Welcome,
)

GOODBYE_SECONDS = 2.0  # how long a peer that is disconnected may take to read its Goodbye
LOOK_SECONDS = 2.0  # interval between checks for revoked certificates and stuck connections
HEALTH_OF = ("", SERVICE)  # what the health service knows
STREAMS = 4  # the most in one connection; a member needs one
# What gRPC raises when a message cannot be written, because the peer has gone or rejects it.
BROKEN = (grpc.aio.InternalError, grpc.aio.UsageError)


@dataclass
class _Connection:
    """The connection of a session."""

    serial: int  # of the certificate
    expires: datetime | None  # when other members start to reject it; secure aggregation only
    write_timeout: asyncio.Timeout  # set once the session is over


def _set_status(context: Any, goodbye: Goodbye) -> None:
    """End the stream with the gRPC status that fits a Goodbye."""
    context.set_code(status_of(goodbye))
    context.set_details(goodbye.detail)


def _call_is_over() -> asyncio.CancelledError:
    """Return what a handler raises after a failed write, so that gRPC sends no status.

    A handler that returns makes gRPC send one. On a call that is over, that fails and is logged as
    an error with a traceback.
    """
    return asyncio.CancelledError("the call is over")


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
        # gRPC ends a stream without a word when a message is too large. So it lets through twice as
        # much as is allowed, and the handler refuses such a message by name.
        options = channel_options(
            most_bytes=2 * settings.most_message_bytes,
            keepalive_seconds=settings.keepalive_seconds,
        )
        # Two servers on one port would each get some of the members, so we forbid a shared port.
        options += [("grpc.so_reuseport", 0), ("grpc.max_concurrent_streams", STREAMS)]
        self._server = grpc.aio.server(options=options)
        handler = join_handler(self._join, settings.most_message_bytes)
        self._server.add_generic_rpc_handlers((handler,))
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

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
            why = why_not_bound(address) or str(error)
            raise SettingsError(f"--listen {address}: cannot listen there ({why})") from error
        await self._server.start()
        for service in HEALTH_OF:
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        self._watch = asyncio.create_task(self._watch_connections())
        return port

    async def close(self, grace_seconds: float = 2.0) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_seconds)

    async def _join(self, requests: Any, context: Any) -> None:
        """Serve one connection. Nothing that the peer sends or does affects other members."""
        address, name = context.peer(), ""
        try:
            name, certificate = certified(context, self._credentials, self._revoked)
            name, hello = await receive_hello(name, requests)
            self._require_connection_rate(name)
            require_welcome(name, hello, self._roster, self._federation)
            masking_key = accepted_masking_key(name, hello, self._roster, self._credentials)
            session = self._roster.admit(
                name,
                hello.applied_improvements,
                is_new=not hello.federation,
                welcome=self._welcome,
                peer=peer_of_hello(hello, address, certificate, masking_key),
            )
        except Refused as error:
            who = f"{name} at {address}" if name else address
            cause = error.goodbye.cause
            self._roster.log.refused(who, str(error), cause, logged=error.logged)
            try:
                # gRPC would send it with the message, and again with a status if that times out.
                await context.send_initial_metadata(())
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await context.write(FromServer(goodbye=error.goodbye).SerializeToString())
            except TimeoutError:  # the peer does not read; it sees the status only if it reads on
                await context.abort(status_of(error.goodbye), error.goodbye.detail)
            except BROKEN as lost:  # the peer has gone
                raise _call_is_over() from lost
            _set_status(context, error.goodbye)
            return
        except asyncio.CancelledError:  # gRPC cancels this call when the peer disconnects
            why = "the connection broke before its Hello"
            self._roster.log.refused(address, why, Cause.NO_HELLO, logged=False)
            raise
        await self._serve(session, certificate.serial, requests, context)

    async def _serve(self, session: Session, serial: int, requests: Any, context: Any) -> None:
        """Write what is in the outbox, and read reports, until either side ends the connection."""
        reading = asyncio.ensure_future(self._read(session, requests))
        most = 2 * self._roster.settings.most_message_bytes
        # gRPC ends the stream in the same way when a message is too large.
        why = f"the connection broke (if it still runs: perhaps by a message above {most:,} bytes)"
        try:
            async with asyncio.timeout(None) as write_timeout:
                expires = expiry(session.masking_key)
                self._connections[session] = _Connection(serial, expires, write_timeout)
                while (message := await session.outbox.get()) is not None:
                    await context.write(message)
            if not reading.done():
                why = "the server disconnected it"
        except TimeoutError:
            why = "it does not read the messages sent to it"
            self._roster.tell(f"{session.name} is disconnected: {why}", level="warning")
        except BROKEN as error:
            why = f"the connection broke while a message of {len(message or b''):,} bytes went out"
            if len(message or b"") > session.peer.receive_bytes:
                why += f"; it accepts {session.peer.receive_bytes:,}"
            raise _call_is_over() from error
        finally:
            reading.cancel()
            del self._connections[session]
            self._roster.leave(session, why)
        if write_timeout.expired():
            # The peer sees this status only if it reads on. We do not wait for that.
            await context.abort(grpc.StatusCode.ABORTED, why)
        if session.farewell is not None:
            _set_status(context, session.farewell)

    def _require_connection_rate(self, name: str) -> None:
        """Raise Refused if the member connects too often."""
        limits = self._limits_of(name)
        if limits.connections.take() == 0:
            limits.exceeded = False
            return
        logged, limits.exceeded = limits.exceeded, True
        why = f"{name} connects too often; try again later"
        seconds = 1 / CONNECTIONS_PER_SECOND
        raise Refused(why, Cause.CONNECTION_RATE, retry_after_seconds=seconds, logged=logged)

    def _limits_of(self, name: str) -> MemberLimits:
        if name not in self._limits:
            rate = self._roster.settings.most_messages_per_second
            self._limits[name] = new_limits(rate, self._clock)
        return self._limits[name]

    async def _watch_connections(self) -> None:
        last_error = ""
        while True:
            settings = self._roster.settings
            deadlines = settings.exchange_deadline_seconds, settings.learning_deadline_seconds
            await asyncio.sleep(min(LOOK_SECONDS, *(each / 4 for each in deadlines)))
            self._limit_ended_sessions()
            self._roster.check_deadlines()
            expiring = [s for s, c in self._connections.items() if is_about_to_expire(c.expires)]
            for session in expiring:
                why = f"the certificate of {session.name} expires too soon; renew it"
                self._roster.expel(session, why, Cause.CERTIFICATE)
            try:
                revoked = revoked_serials(self._credentials, self._revoked)
            except CredentialsError as error:
                # Connected members passed the check against an older list, so they may stay.
                if last_error != (last_error := str(error)):  # log a repeated error once
                    self._roster.tell(last_error, level="warning")
                continue
            for session in [s for s, c in self._connections.items() if c.serial in revoked]:
                why = f"the certificate of {session.name} is revoked"
                self._roster.expel(session, why, Cause.CERTIFICATE)

    def _limit_ended_sessions(self) -> None:
        """Give each connection whose session is over GOODBYE_SECONDS to read its last messages."""
        until = asyncio.get_running_loop().time() + GOODBYE_SECONDS
        for session, connection in self._connections.items():
            over = self._roster.sessions.get(session.name) is not session
            if over and connection.write_timeout.when() is None:
                connection.write_timeout.reschedule(until)

    def _welcome(self, improvements: int) -> Welcome:
        settings = self._roster.settings
        return Welcome(
            federation=self._federation,
            task=self._task,
            improvements=improvements,
            most_states=settings.most_states,
            secure_value_bound=self._roster.secure_value_bound or 0.0,
            minor=MINOR,
            software=SOFTWARE,
            limits=Limits(
                message_bytes=settings.most_message_bytes,
                messages_per_second=settings.most_messages_per_second,
                answer_seconds=settings.exchange_deadline_seconds,
                learning_seconds=settings.learning_deadline_seconds,
                missed_deadlines=settings.disconnect_after,
                refused_answers=settings.quarantine_after,
            ),
        )

    async def _read(self, session: Session, requests: Any) -> None:
        limit = self._limits_of(session.name).messages
        try:
            async for message in requests:
                session.heard_at = datetime.now(UTC)
                # gRPC's flow control slows a member down whose messages are not read. The operator
                # may have changed the rate.
                limit.per_second = self._roster.settings.most_messages_per_second
                while (seconds := limit.take()) > 0:
                    await asyncio.sleep(seconds)
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
            self._roster.expel(session, str(error), error.cause)
        finally:
            session.outbox.put_nowait(None)

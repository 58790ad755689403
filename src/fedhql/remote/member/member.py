"""A member's client: it runs a private agent and reconnects whenever the connection breaks.

The agent works in the event loop's thread and blocks the loop while it works. gRPC's own threads
keep the connection alive meanwhile.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import grpc

from fedhql.contract import BlackBoxAgent
from fedhql.errors import FedHQLError, MemberRefused, MemberStopped, SpacesDiffer
from fedhql.remote.identity.credentials import Credentials, channel_credentials
from fedhql.remote.identity.handshake import explained
from fedhql.remote.member.kept_agent import KeptAgent
from fedhql.remote.member.masking import Masking
from fedhql.remote.wire import (
    MINOR,
    MOST_BYTES_TO_A_MEMBER,
    NOTICES,
    PROTOCOL,
    SOFTWARE,
    WireError,
    channel_options,
    join_method,
    pack,
)
from fedhql.remote.wire_pb2 import Cause, FromMember, Goodbye, Hello, Order, Report, Task, Welcome
from fedhql.storage.tracking import Tracker

log = logging.getLogger(__name__)
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.2, 30.0
LONGEST_RETRY_AFTER_SECONDS = 3_600.0  # whatever the server says
GIVE_UP_SECONDS = 24 * 3_600.0
REJECTIONS = 3  # of our certificate in a row, before we believe that it will never do
KEEPALIVE_SECONDS = 20.0
GOODBYE_SECONDS = 2.0


class _Over(Exception):
    """The server has said that this member's work is over."""


class Member:
    """One agent in one federation."""

    def __init__(
        self,
        name: str,
        address: str,
        home: Path,
        build: Callable[[Task], BlackBoxAgent],
        *,
        credentials: Credentials | None,
        rng: random.Random,
        clock: Callable[[], float],
        keepalive_seconds: float = KEEPALIVE_SECONDS,
        secure_aggregation: bool = False,
        give_up_seconds: float = GIVE_UP_SECONDS,
        trackers: Sequence[Tracker] = (),
    ) -> None:
        """Create a member. It gives up when no server has welcomed it for `give_up_seconds`.

        With `secure_aggregation` all answers are masked, and servers without it are refused.
        `trackers` get the agent's diagnostics, and are closed at the end.
        """
        self._name, self._address, self._home = name, address, home
        self._credentials, self._rng, self._keepalive = credentials, rng, keepalive_seconds
        self._clock, self._give_up_seconds = clock, give_up_seconds
        self._agent = KeptAgent(name, home, build, clock, trackers)
        self._welcomed = False
        self._has_reported = False  # in this connection
        self._reports_per_second = 0.0  # the most that the server reads; 0: it did not say
        self._secure_aggregation = secure_aggregation
        self._masking: Masking | None = None  # of this connection
        self._stopping = False
        self._stream: Any = None  # None while there is no connection
        self._writing = asyncio.Lock()
        self._reading: asyncio.Future[Any] | None = None  # an open read while the agent learns

    async def run(self) -> None:
        """Work until the server says it is over. Raise MemberRefused if either side refuses."""
        # A task of its own: cancelling a read would end the stream before the Goodbye is sent.
        work = asyncio.ensure_future(self._work())
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            self._stopping = True
            with suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE_SECONDS), self._writing:
                    if self._stream is not None:
                        goodbye = Goodbye(
                            reason=Goodbye.STOPPED, detail="its owner stops it", cause=Cause.OWNER
                        )
                        await _send_goodbye(self._stream, goodbye)
                    work.cancel()
            raise
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            if self._stopping and work.cancelled():  # otherwise the agent may be mid-step
                self._agent.checkpoint()
            self._agent.close()

    async def _work(self) -> None:
        """Connect again after each disconnection, with growing pauses, until the work is over."""
        wait, heard_at, rejections = FIRST_WAIT_SECONDS, self._clock(), 0
        while True:
            try:
                await self._session()
            except _Over as end:
                log.info("%s: has finished: %s", self._name, end)
                return
            except _Disconnected as error:
                if self._stopping:  # we ended the connection ourselves
                    await asyncio.Future()  # wait to be cancelled
                why, is_final = await asyncio.to_thread(
                    explained, error.__cause__ or error, self._address, self._credentials
                )
                if self._agent.has_finished:
                    log.info(
                        "%s: has finished, and %s cannot be reached (%s); another federation needs "
                        "another --home than %s",
                        self._name, self._address, why, self._home,
                    )  # fmt: skip
                    return
                rejections = rejections + 1 if is_final else 0
                if rejections == REJECTIONS:
                    raise MemberRefused(f"{self._address}: {why}") from error
                if self._welcomed:
                    heard_at = self._clock()
                if self._has_reported:  # not earlier: the first order itself may break connections
                    wait = FIRST_WAIT_SECONDS
                if self._clock() - heard_at > self._give_up_seconds:
                    raise MemberStopped(
                        f"no server at {self._address} for {self._give_up_seconds:,.0f} s (the "
                        f"last attempt: {why}); run the same command to try again"
                    ) from error
                pause = error.retry_after_seconds + wait * self._rng.uniform(0.5, 1.0)
                log.warning(
                    "%s: no connection to %s (%s); retrying in %.1f s",
                    self._name, self._address, why, pause,
                )  # fmt: skip
                await asyncio.sleep(pause)
                wait = min(2 * wait, LONGEST_WAIT_SECONDS)

    async def _session(self) -> None:
        """Run one connection, from Hello to its end."""
        self._welcomed = self._has_reported = False
        async with self._channel() as channel:
            stream = self._stream = join_method(channel)()
            hello = Hello(
                protocol=PROTOCOL,
                name=self._name,
                federation=self._agent.goes_on_in,
                applied_improvements=self._agent.improvements.applied,
                last_improvement=self._agent.improvements.last,
                minor=MINOR,
                most_message_bytes=MOST_BYTES_TO_A_MEMBER,
                software=SOFTWARE,
                capabilities=[NOTICES],
            )
            if self._secure_aggregation:
                self._masking = Masking(self._name, self._credentials)
                hello.masking_key.CopyFrom(self._masking.key)
            try:
                with _on_a_stream():
                    await stream.write(FromMember(hello=hello))
                await self._converse(stream)
            except MemberStopped:
                await _send_goodbye(
                    stream,
                    Goodbye(
                        reason=Goodbye.STOPPED,
                        detail="it cannot save its state",
                        cause=Cause.OWNER,
                    ),
                )
                raise
            except WireError as error:
                await _send_goodbye(
                    stream,
                    Goodbye(reason=Goodbye.REFUSED, detail=str(error)[:500], cause=error.cause),
                )
                raise MemberRefused(f"{self._address} sent an invalid message: {error}") from error
            except (_Over, _Disconnected, MemberRefused):
                raise
            except Exception:  # the agent's, whose details are for its owner alone
                detail = "its agent raised an error"
                await _send_goodbye(
                    stream, Goodbye(reason=Goodbye.STOPPED, detail=detail, cause=Cause.OWNER)
                )
                raise
            finally:
                self._stream = None
                if self._reading is not None:  # last, as it ends the stream
                    self._reading.cancel()
                    await asyncio.gather(self._reading, return_exceptions=True)
                    self._reading = None

    async def _converse(self, stream: Any) -> None:
        """Handle messages as they arrive, and learn chunk by chunk between them."""
        learn: Order | None = None
        while True:
            if learn is not None:
                self._reading = self._reading or asyncio.ensure_future(stream.read())
                await asyncio.sleep(0)  # let the read finish if a message has arrived
                if not self._reading.done():
                    learn = await self._learn_a_chunk(stream, learn)
                    continue
            with _on_a_stream():
                message = await (self._reading or stream.read())
            self._reading = None
            if message is grpc.aio.EOF:
                raise _Disconnected("the server closed the connection")
            match message.WhichOneof("message"):
                case "order":
                    learn = await self._carry_out(stream, message.order, learn)
                case "welcome":
                    await self._welcomed_by(message.welcome, stream)
                case "notice":
                    log.warning(
                        "%s: the server refused an answer: %s (left before quarantine: %d)",
                        self._name, message.notice.detail, message.notice.left,
                    )  # fmt: skip
                case "goodbye":
                    if message.goodbye.reason == Goodbye.FINISHED:
                        done = self._agent.save_last()
                        await self._report_last_phase(stream)
                        await _send_goodbye(stream, Goodbye(reason=Goodbye.FINISHED, detail=done))
                        self._agent.finish()
                    else:  # if we closed first, the server could not end its side
                        await _server_has_closed(stream)
                    self._raise_for(message.goodbye)

    def _channel(self) -> grpc.aio.Channel:
        options = channel_options(
            most_bytes=MOST_BYTES_TO_A_MEMBER, keepalive_seconds=self._keepalive
        )
        # We retry ourselves, so that each connection begins with an up-to-date Hello. With a shared
        # pool, gRPC could continue the growing backoff of an earlier failed connection.
        options += [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._address, options)
        return grpc.aio.secure_channel(
            self._address, channel_credentials(self._credentials), options
        )

    async def _welcomed_by(self, welcome: Welcome, stream: Any) -> None:
        if self._agent.federation not in ("", welcome.federation):
            detail = "its home belongs to another federation"
            goodbye = Goodbye(reason=Goodbye.REFUSED, detail=detail, cause=Cause.OTHER_FEDERATION)
            await _send_goodbye(stream, goodbye)
            raise MemberRefused(
                f"{self._address} is federation {welcome.federation}, but {self._home} belongs to "
                f"{self._agent.federation}; use a separate --home for each federation"
            )
        if self._masking is not None:
            self._masking.begin(welcome)
        try:
            self._agent.begin(welcome)
        except MemberStopped:
            raise
        except (FedHQLError, WireError) as error:
            # A fault of this side alone is not described to the server.
            private = not isinstance(error, (SpacesDiffer, WireError))
            detail = "its agent could not be built" if private else str(error)[:500]
            await _send_goodbye(stream, Goodbye(reason=Goodbye.REFUSED, detail=detail))
            raise MemberRefused(str(error)) from error
        self._welcomed = True
        self._reports_per_second = welcome.limits.messages_per_second
        log.info(
            "%s: joined at improvement %d; the server gives it work when enough members are there",
            self._name, self._agent.improvements.applied,
        )  # fmt: skip

    def _raise_for(self, goodbye: Goodbye) -> NoReturn:
        """Raise the exception that a Goodbye from the server stands for."""
        match goodbye.reason:
            case Goodbye.FINISHED:
                raise _Over(goodbye.detail)
            case Goodbye.REFUSED:
                raise MemberRefused(f"{self._address} refuses {self._name}: {goodbye.detail}")
            case Goodbye.REPLACED:
                raise MemberRefused(f"another process has connected as {self._name}")
        raise _Disconnected(goodbye.detail, goodbye.retry_after_seconds)

    async def _carry_out(self, stream: Any, order: Order, learn: Order | None) -> Order | None:
        """Carry out an order. Return the learning order to work on next, or None."""
        if not self._welcomed:
            raise WireError("an order before a welcome")
        self._agent.apply(order)
        match order.WhichOneof("work"):
            case "learn":
                return order
            case "query":
                await self._report(stream, self._answer(order))
                return learn
        await self._report(stream, Report(id=order.id))  # it only brought improvements
        return None  # a phase that is not finished is ordered again

    def _answer(self, order: Order) -> Report:
        values = self._agent.q_values(order.query.states)
        if self._masking is not None:  # actions would show the server what masks hide
            return Report(id=order.id, values=self._masking.answer(order, values))
        actions = self._agent.act(order.query.states) if order.query.act else None
        sent = None if actions is None else pack(actions)
        return Report(id=order.id, values=pack(values), actions=sent)

    async def _learn_a_chunk(self, stream: Any, order: Order) -> Order | None:
        """Learn one chunk and report it. Return the order, or None if the phase is done."""
        begun = self._clock()
        report = self._agent.learn(order.learn)
        if self._reports_per_second > 0:  # the server reads no faster
            await asyncio.sleep(begun + 1 / self._reports_per_second - self._clock())
        report.id.CopyFrom(order.id)
        await self._report(stream, report)
        return order if report.phase_env_steps < order.learn.env_steps else None

    async def _report_last_phase(self, stream: Any) -> None:
        """Repeat what was learned last: the connection may have broken before the first report."""
        if (report := self._agent.learned()).phase:
            with suppress(_Disconnected):
                await self._report(stream, report)

    async def _report(self, stream: Any, report: Report) -> None:
        report.applied_improvements = self._agent.improvements.applied
        report.skipped_improvements = self._agent.improvements.skipped
        async with self._writing:
            with _on_a_stream():
                await stream.write(FromMember(report=report))
        self._has_reported = True
        self._agent.checkpoint_if_due()


class _Disconnected(Exception):
    """The connection ended, and a new one may succeed."""

    def __init__(self, why: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(why)
        is_sane = 0 <= retry_after_seconds <= LONGEST_RETRY_AFTER_SECONDS  # False for NaN
        self.retry_after_seconds = retry_after_seconds if is_sane else 0.0


@contextmanager
def _on_a_stream() -> Iterator[None]:
    """Raise _Disconnected if the stream has ended: an agent may raise the same exceptions."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise _Disconnected(error.details() or error.code().name) from error
    except (grpc.aio.InternalError, asyncio.InvalidStateError):  # it ended before we wrote
        raise _Disconnected("the connection broke") from None


async def _send_goodbye(stream: Any, goodbye: Goodbye) -> None:
    """Send a Goodbye and wait until the server has closed the stream.

    If we ended the stream first, the server would lose whatever it has not read.
    """
    with suppress(*_ENDED):
        await stream.write(FromMember(goodbye=goodbye))
        await stream.done_writing()
    await _server_has_closed(stream)


async def _server_has_closed(stream: Any) -> None:
    """Wait a little until the server has ended the stream with its status."""
    with suppress(*_ENDED):
        await asyncio.wait_for(stream.code(), GOODBYE_SECONDS)


# What gRPC raises on a stream that has ended, and what a wait raises.
_ENDED = (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError, TimeoutError)

"""An owner's side of the wire: a private agent, and a connection that is mended whenever it breaks.

The agent works in the main thread, and while it works nothing else does here; gRPC's own threads
keep the connection alive meanwhile. Its state is saved together with the number of improvements
that are in it, so that each is in it once, whatever is killed when.
"""

import asyncio
import json
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from fedhql.contract import BlackBoxAgent, Checkpointable, Closable, Exportable
from fedhql.errors import FedHQLError, MemberRefused, SpacesDiffer
from fedhql.federation.cohort import checked_answer
from fedhql.remote.credentials import Credentials, channel_credentials
from fedhql.remote.handshake import explained
from fedhql.remote.masking import Masking
from fedhql.remote.window import fingerprint
from fedhql.remote.wire import (
    MOST_BYTES_TO_A_MEMBER,
    PROTOCOL,
    WireError,
    channel_options,
    join_method,
    pack,
    unpack,
)
from fedhql.remote.wire_pb2 import (
    FromMember,
    Goodbye,
    Hello,
    Improvement,
    Learn,
    Order,
    Report,
    Task,
    Welcome,
)
from fedhql.results.checkpoints import Checkpoints
from fedhql.results.files import whole_directory, write_atomically

log = logging.getLogger(__name__)
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.2, 30.0
KEEPALIVE_SECONDS = 20.0
GOODBYE_SECONDS = 2.0
LEDGER, PLACE = "member.json", "place.json"


@dataclass
class _Ledger:
    """What must never be forgotten, whatever the agent forgets: work that was paid for."""

    federation: str = ""
    phase: int = 0
    phase_env_steps: int = 0


@dataclass
class _Place:
    """Which improvements are in the agent; saved with it."""

    applied: int = 0
    skipped: int = 0
    last: int = 0  # the last one's fingerprint; 0 if it was skipped, or is not ours to know


class _Over(Exception):
    """The server has said that there is nothing more to do."""


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
    ) -> None:
        """With `secure_aggregation` no server gets an answer of it that is not masked."""
        self._name, self._address, self._home, self._build = name, address, home, build
        self._credentials, self._rng, self._keepalive = credentials, rng, keepalive_seconds
        self._agent: BlackBoxAgent | None = None
        self._keeps = False  # whether it can be saved
        self._welcome, self._welcomed = Welcome(), False
        self._secure_aggregation = secure_aggregation
        self._masking: Masking | None = None  # of this connection
        self._stopping = False
        self._stream: Any = None  # while there is one
        self._writing = asyncio.Lock()
        self._reading: asyncio.Future[Any] | None = None  # what comes while the agent learns
        self._checkpoints = Checkpoints(home / "checkpoint", clock)
        self._ledger, self._place = _Ledger(), _Place()
        if (path := home / LEDGER).exists():
            self._ledger = _Ledger(**json.loads(path.read_text()))
        latest = self._checkpoints.latest()
        self._begun = latest is not None  # else it has nothing of the federation, or not any more
        if latest is not None:
            self._place = _Place(**json.loads((latest / PLACE).read_text()))

    async def run(self) -> None:
        """Until the server says it is over. Raises MemberRefused if it will not have us."""
        # Apart, because a cancelled read would end the stream before we can say goodbye.
        work = asyncio.ensure_future(self._work())
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            self._stopping = True
            with suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE_SECONDS), self._writing:
                    if self._stream is not None:
                        goodbye = Goodbye(reason=Goodbye.STOPPED, detail="its owner stops it")
                        await _say(self._stream, goodbye)
                    work.cancel()
            raise
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            if self._stopping and work.cancelled():  # else it may be in the middle of its work
                self._checkpoint()
            if isinstance(self._agent, Closable):
                self._agent.close()

    async def _work(self) -> None:
        """One connection after the other."""
        wait = FIRST_WAIT_SECONDS
        while True:
            try:
                await self._session()
            except _Over as end:
                log.info("%s: %s", self._name, end)
                return
            except (grpc.aio.AioRpcError, _Disconnected) as error:
                if self._stopping:  # it was we who ended it
                    await asyncio.Future()  # until we are cancelled
                why = await asyncio.to_thread(explained, error, self._address, self._credentials)
                if self._welcomed:
                    wait = FIRST_WAIT_SECONDS
                pause = wait * self._rng.uniform(0.5, 1.0)
                log.warning(
                    "%s: no connection to %s (%s); again in %.1f s",
                    self._name, self._address, why, pause,
                )  # fmt: skip
                await asyncio.sleep(pause)
                wait = min(2 * wait, LONGEST_WAIT_SECONDS)

    async def _session(self) -> None:
        """One connection, from Hello to its end."""
        self._welcomed = False
        async with self._channel() as channel:
            stream = self._stream = join_method(channel)()
            hello = Hello(
                protocol=PROTOCOL,
                name=self._name,
                federation=self._ledger.federation if self._begun else "",
                applied_improvements=self._place.applied,
                last_improvement=self._place.last,
            )
            if self._secure_aggregation:
                self._masking = Masking(self._name, self._credentials)
                hello.masking_key.CopyFrom(self._masking.key)
            try:
                await stream.write(FromMember(hello=hello))
                await self._converse(stream)
            except asyncio.InvalidStateError as error:  # written to after it had ended
                raise _Disconnected("it broke off") from error
            except WireError as error:
                await _say(stream, Goodbye(reason=Goodbye.REFUSED, detail=str(error)[:500]))
                raise MemberRefused(f"{self._address} sent what it should not: {error}") from error
            finally:
                self._stream = None
                if self._reading is not None:  # which ends the stream, so last
                    self._reading.cancel()
                    await asyncio.gather(self._reading, return_exceptions=True)
                    self._reading = None

    async def _converse(self, stream: Any) -> None:
        """Orders as they come; between them, the self-learning that was ordered."""
        learn: Order | None = None
        while True:
            if learn is not None:
                self._reading = self._reading or asyncio.ensure_future(stream.read())
                await asyncio.sleep(0)  # so that it sees what has come
                if not self._reading.done():
                    learn = await self._learn_a_chunk(stream, learn)
                    continue
            message = await (self._reading or stream.read())
            self._reading = None
            if message is grpc.aio.EOF:
                raise _Disconnected("the server closed it")
            match message.WhichOneof("message"):
                case "order":
                    learn = await self._obey(stream, message.order, learn)
                case "welcome":
                    await self._welcomed_by(message.welcome, stream)
                case "goodbye":
                    if message.goodbye.reason == Goodbye.FINISHED:
                        self._save_last()
                        await _say(stream, Goodbye(reason=Goodbye.FINISHED, detail="all is saved"))
                    self._hear(message.goodbye)

    def _channel(self) -> grpc.aio.Channel:
        options = channel_options(
            most_bytes=MOST_BYTES_TO_A_MEMBER, keepalive_seconds=self._keepalive
        )
        # Retries are ours, so that each connection begins with what we have now. A pool of its own:
        # else gRPC may go on waiting, for longer and longer, since an older connection failed.
        options += [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._address, options)
        return grpc.aio.secure_channel(
            self._address, channel_credentials(self._credentials), options
        )

    async def _welcomed_by(self, welcome: Welcome, stream: Any) -> None:
        if self._ledger.federation not in ("", welcome.federation):
            raise MemberRefused(
                f"{self._address} is federation {welcome.federation}, {self._home} belongs to "
                f"{self._ledger.federation}; a member needs a --home for each"
            )
        if self._masking is not None:
            self._masking.begin(welcome)
        if self._agent is not None:
            self._welcome.most_states = welcome.most_states  # a server's settings may change
        else:
            self._welcome = welcome
            if not self._begun:  # what was before is not ours
                self._place.applied = welcome.improvements
            try:
                self._begin()
            except (FedHQLError, WireError) as error:
                # Of what is wrong on this side alone the server need not know more.
                ours = not isinstance(error, (SpacesDiffer, WireError))
                detail = "its agent could not be built" if ours else str(error)[:500]
                await _say(stream, Goodbye(reason=Goodbye.REFUSED, detail=detail))
                raise MemberRefused(str(error)) from error
        self._welcomed = True
        log.info("%s: joined at improvement %d", self._name, self._place.applied)

    def _hear(self, goodbye: Goodbye) -> None:
        match goodbye.reason:
            case Goodbye.FINISHED:
                raise _Over(goodbye.detail)
            case Goodbye.REFUSED:
                raise MemberRefused(f"{self._address} refuses {self._name}: {goodbye.detail}")
            case Goodbye.REPLACED:
                raise MemberRefused(f"another process has connected as {self._name}")
        raise _Disconnected(goodbye.detail)

    async def _obey(self, stream: Any, order: Order, learn: Order | None) -> Order | None:
        """What to learn from now on is given back: that is done chunk by chunk."""
        if not self._welcomed:
            raise WireError("an order before a welcome")
        self._apply(order)
        match order.WhichOneof("work"):
            case "learn":
                return order
            case "query":
                await self._report(stream, self._answer(order))
                return learn
        await self._report(stream, Report(id=order.id))
        return None

    async def _learn_a_chunk(self, stream: Any, order: Order) -> Order | None:
        """None when the phase is done."""
        report = self._learn(order.learn)
        report.id.CopyFrom(order.id)
        await self._report(stream, report)
        return order if report.phase_env_steps < order.learn.env_steps else None

    async def _report(self, stream: Any, report: Report) -> None:
        report.applied_improvements = self._place.applied
        report.skipped_improvements = self._place.skipped
        async with self._writing:
            await stream.write(FromMember(report=report))
        if self._keeps and self._checkpoints.due():
            self._checkpoint()

    # The agent's work

    def _begin(self) -> None:
        task = self._welcome.task
        agent = self._build(task)
        latest = self._checkpoints.latest()
        if latest is not None and isinstance(agent, Checkpointable):
            agent.restore(latest)
        states = np.zeros((1, *task.state_shape), dtype=task.state_dtype)
        checked_answer(self._name, agent.q_values(states), 1, task.actions)
        self._agent, self._keeps = agent, isinstance(agent, Checkpointable)
        self._begun = True
        if latest is None:  # so that its place is known from the start
            self._checkpoint()
        self._ledger.federation = self._welcome.federation
        self._write_ledger()

    def _apply(self, order: Order) -> None:
        """Each improvement once and in order; what cannot be had any more is skipped aloud."""
        place = self._place
        if order.skip_through > place.applied:
            missed = order.skip_through - place.applied
            log.warning("%s: %d improvements are lost to it", self._name, missed)
            place.applied, place.skipped = order.skip_through, place.skipped + missed
            place.last = 0
        for improvement in order.improvements:
            if improvement.number <= place.applied:
                continue  # sent again by a server that could not know
            if improvement.number != place.applied + 1:
                raise WireError(f"improvement {improvement.number} after {place.applied}")
            self._improve(improvement)
            place.applied, place.last = improvement.number, fingerprint(improvement)

    def _improve(self, improvement: Improvement) -> None:
        assert self._agent is not None
        task = self._welcome.task
        B = self._require_batch(improvement.states.shape)
        states = unpack(improvement.states, dtype=task.state_dtype, shape=(B, *task.state_shape))
        actions = unpack(improvement.actions, dtype="int64", shape=(B,))
        targets = unpack(improvement.targets, dtype="float32", shape=(B,))
        if not np.isfinite(targets).all() or not ((actions >= 0) & (actions < task.actions)).all():
            raise WireError(f"improvement {improvement.number} has impossible actions or targets")
        self._agent.improve(states, actions, targets)

    def _answer(self, order: Order) -> Report:
        assert self._agent is not None
        task = self._welcome.task
        B = self._require_batch(order.query.states.shape)
        states = unpack(order.query.states, dtype=task.state_dtype, shape=(B, *task.state_shape))
        values = checked_answer(self._name, self._agent.q_values(states), B, task.actions)
        masking = self._masking
        tensor = pack(values) if masking is None else masking.answer(order, values)
        return Report(id=order.id, values=tensor)

    def _learn(self, learn: Learn) -> Report:
        """One chunk of the phase, unless that phase is done."""
        assert self._agent is not None
        ledger = self._ledger
        if learn.phase != ledger.phase:
            ledger.phase, ledger.phase_env_steps = learn.phase, 0
        steps = min(max(1, learn.chunk_env_steps), learn.env_steps - ledger.phase_env_steps)
        if steps > 0:
            self._agent.self_learn(steps)
            ledger.phase_env_steps += steps
            self._write_ledger()
        return Report(phase=ledger.phase, phase_env_steps=ledger.phase_env_steps)

    def _require_batch(self, shape: Any) -> int:
        if not shape or not 0 < shape[0] <= self._welcome.most_states:
            raise WireError(
                f"a batch of {list(shape)[:1]}, agreed: 1 to {self._welcome.most_states}"
            )
        return int(shape[0])

    def _write_ledger(self) -> None:
        write_atomically(self._home / LEDGER, json.dumps(asdict(self._ledger)) + "\n")

    def _checkpoint(self) -> None:
        if isinstance(self._agent, Checkpointable):
            # A number of its own each time: a directory cannot be replaced in one step.
            latest = self._checkpoints.latest()
            number = 0 if latest is None else int(latest.name.removeprefix("round-")) + 1
            with self._checkpoints.write(number) as directory:
                self._agent.save(directory)
                (directory / PLACE).write_text(json.dumps(asdict(self._place)))

    def _save_last(self) -> None:
        """All of it, to go on from; and what its owner keeps of a trained agent."""
        self._checkpoint()
        if isinstance(self._agent, Exportable):
            with whole_directory(self._home / "last") as directory:
                self._agent.export(directory)


class _Disconnected(Exception):
    """A connection's end that a new one will mend."""


async def _say(stream: Any, goodbye: Goodbye) -> None:
    """And let the server hear it: whatever it has not read is lost when we end the stream."""
    with suppress(
        grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError, TimeoutError
    ):
        await stream.write(FromMember(goodbye=goodbye))
        await stream.done_writing()
        await asyncio.wait_for(stream.code(), GOODBYE_SECONDS)

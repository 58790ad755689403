"""An owner's side of the wire: a private agent, and a connection that is mended whenever it breaks.

The agent works in one thread, one thing after the other. Its state is saved together with the
number of improvements that are in it, so that each is in it once, whatever is killed when.
"""

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from fedhql.contract import BlackBoxAgent, Checkpointable, Closable, Exportable
from fedhql.errors import AgentRefused, MemberRefused
from fedhql.federation.cohort import checked_answer
from fedhql.remote.credentials import Credentials, channel_credentials
from fedhql.remote.wire import PROTOCOL, WireError, channel_options, join_method, pack, unpack
from fedhql.remote.wire_pb2 import (
    FromMember,
    FromServer,
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
MOST_BYTES = 256 * 1024 * 1024
KEEPALIVE_SECONDS = 20.0
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
    ) -> None:
        self._name, self._address, self._home, self._build = name, address, home, build
        self._credentials, self._rng, self._keepalive = credentials, rng, keepalive_seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="agent")
        self._agent: BlackBoxAgent | None = None
        self._welcome, self._welcomed = Welcome(), False
        self._checkpoints = Checkpoints(home / "checkpoint", clock)
        self._ledger, self._place = _Ledger(), _Place()
        if (path := home / LEDGER).exists():
            self._ledger = _Ledger(**json.loads(path.read_text()))
        if (latest := self._checkpoints.latest()) is not None:
            self._place = _Place(**json.loads((latest / PLACE).read_text()))

    async def run(self) -> None:
        """Until the server says it is over. Raises MemberRefused if it will not have us."""
        wait = FIRST_WAIT_SECONDS
        try:
            while True:
                try:
                    await self._session()
                except _Over as end:
                    log.info("%s: %s", self._name, end)
                    await self._in_thread(self._save_last)
                    return
                except (grpc.aio.AioRpcError, _Disconnected) as error:
                    why = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
                    if self._welcomed:
                        wait = FIRST_WAIT_SECONDS
                    pause = wait * self._rng.uniform(0.5, 1.0)
                    log.warning(
                        "%s: no connection to %s (%s); again in %.1f s",
                        self._name, self._address, why, pause,
                    )  # fmt: skip
                    await asyncio.sleep(pause)
                    wait = min(2 * wait, LONGEST_WAIT_SECONDS)
        finally:
            self._thread.shutdown(wait=True)
            if isinstance(self._agent, Closable):
                self._agent.close()

    async def _session(self) -> None:
        """One connection, from Hello to its end."""
        self._welcomed = False
        async with self._channel() as channel:
            stream = join_method(channel)()
            hello = Hello(
                protocol=PROTOCOL,
                name=self._name,
                federation=self._ledger.federation,
                applied_improvements=self._place.applied,
            )
            await stream.write(FromMember(hello=hello))
            tasks: set[asyncio.Task[None]] = set()
            try:
                tasks.add(asyncio.create_task(self._converse(stream, tasks)))
                while tasks:  # either ends only by raising, so the first end is the session's
                    ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    for task in ended:
                        task.result()
            except asyncio.CancelledError:
                await _say(stream, Goodbye(reason=Goodbye.STOPPED, detail="its owner stops it"))
                raise
            except asyncio.InvalidStateError as error:  # written to after it had ended
                raise _Disconnected("it broke off") from error
            except WireError as error:
                await _say(stream, Goodbye(reason=Goodbye.REFUSED, detail=str(error)[:500]))
                raise MemberRefused(f"{self._address} sent what it should not: {error}") from error
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _converse(self, stream: Any, tasks: set[asyncio.Task[None]]) -> None:
        orders: asyncio.Queue[Order] = asyncio.Queue()
        async for message in _messages(stream):
            match message.WhichOneof("message"):
                case "welcome":
                    await self._welcomed_by(message.welcome, stream)
                    tasks.add(asyncio.create_task(self._work(orders, stream)))
                case "order":
                    orders.put_nowait(message.order)
                case "goodbye":
                    self._hear(message.goodbye)
        raise _Disconnected("the server closed it")

    def _channel(self) -> grpc.aio.Channel:
        options = channel_options(most_bytes=MOST_BYTES, keepalive_seconds=self._keepalive)
        # Retries are ours, so that each connection begins with what we have now.
        options += [("grpc.enable_retries", 0)]
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._address, options)
        return grpc.aio.secure_channel(
            self._address, channel_credentials(self._credentials), options
        )

    async def _welcomed_by(self, welcome: Welcome, stream: Any) -> None:
        if self._agent is None:
            self._welcome = welcome
            if not self._ledger.federation:  # the first time: what was before is not ours
                self._place.applied = welcome.improvements
            try:
                await self._in_thread(self._begin)
            except (AgentRefused, WireError) as error:
                await _say(stream, Goodbye(reason=Goodbye.REFUSED, detail=str(error)[:500]))
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

    async def _work(self, orders: asyncio.Queue[Order], stream: Any) -> None:
        """Orders as they come; between them, the self-learning that was ordered."""
        learn: Order | None = None
        while True:
            if learn is None or not orders.empty():
                order = await orders.get()
                await self._in_thread(self._apply, order)
                if order.WhichOneof("work") == "query":
                    await self._report(stream, await self._in_thread(self._answer, order))
                else:
                    learn = order
            else:
                report = await self._in_thread(self._learn, learn.learn)
                if report.phase_env_steps >= learn.learn.env_steps:
                    done, learn = learn, None
                else:
                    done = learn
                report.id.CopyFrom(done.id)
                await self._report(stream, report)
            await self._in_thread(self._checkpoint_if_due)

    async def _report(self, stream: Any, report: Report) -> None:
        report.applied_improvements = self._place.applied
        report.skipped_improvements = self._place.skipped
        await stream.write(FromMember(report=report))

    async def _in_thread(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """What has begun is finished, also if nobody waits for it any more."""
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._thread, call, *arguments))

    # In the agent's thread

    def _begin(self) -> None:
        task = self._welcome.task
        agent = self._build(task)
        latest = self._checkpoints.latest()
        if latest is not None and isinstance(agent, Checkpointable):
            agent.restore(latest)
        states = np.zeros((1, *task.state_shape), dtype=task.state_dtype)
        checked_answer(self._name, agent.q_values(states), 1, task.actions)
        self._agent = agent
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
        for improvement in order.improvements:
            if improvement.number <= place.applied:
                continue  # sent again by a server that could not know
            if improvement.number != place.applied + 1:
                raise WireError(f"improvement {improvement.number} after {place.applied}")
            self._improve(improvement)
            place.applied = improvement.number

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
        return Report(id=order.id, values=pack(values))

    def _learn(self, learn: Learn) -> Report:
        """One chunk of the phase, unless that phase is done."""
        assert self._agent is not None
        ledger = self._ledger
        if learn.phase != ledger.phase:
            ledger.phase, ledger.phase_env_steps = learn.phase, 0
        steps = min(learn.chunk_env_steps, learn.env_steps - ledger.phase_env_steps)
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

    def _checkpoint_if_due(self) -> None:
        if self._checkpoints.due():
            self._checkpoint()

    def _checkpoint(self) -> None:
        if isinstance(self._agent, Checkpointable):
            with self._checkpoints.write(self._place.applied) as directory:
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


async def _messages(stream: Any) -> AsyncIterator[FromServer]:
    while (message := await stream.read()) is not grpc.aio.EOF:
        yield message


async def _say(stream: Any, goodbye: Goodbye) -> None:
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await stream.write(FromMember(goodbye=goodbye))
        await stream.done_writing()

"""A server survives invalid input from strangers and members, and the other members go on."""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from fedhql.remote.wire import JOIN, SERVICE, pack
from fedhql.remote.wire_pb2 import FromMember, FromServer, Hello, Order, Report, Tensor
from tests.remote.federating import (
    Server,
    accounts,
    assert_exact_shares,
    assert_finished,
    federation,
    members_of,
    serving,
)
from tests.remote.recording import Recorder

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MOST_BYTES = 65_536
BUDGET = 480
TEXT = federation(
    BUDGET,
    exchange_deadline_seconds=0.2,
    learning_deadline_seconds=0.3,
    return_seconds=0.5,
    most_message_bytes=MOST_BYTES,
    most_messages_per_second=200,
)

Attack = Callable[[Server, random.Random], Coroutine[Any, Any, None]]


class Attacker:
    """A gRPC client that can send any bytes."""

    def __init__(self, server: Server) -> None:
        self._channel = grpc.aio.insecure_channel(server.address)
        method: Any = self._channel.stream_stream(f"/{SERVICE}/{JOIN}")
        self.call: Any = method()

    async def send(self, content: bytes) -> None:
        with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            await self.call.write(content)

    async def hear(self) -> FromServer | None:
        """Return the next message; None if the stream has ended or nothing comes soon."""
        try:
            content = await asyncio.wait_for(self.call.read(), 0.5)
        except (TimeoutError, grpc.aio.AioRpcError):
            return None
        return None if content is grpc.aio.EOF else FromServer.FromString(content)

    async def join(self, name: str) -> None:
        hello = Hello(protocol=1, name=name)
        await self.send(FromMember(hello=hello).SerializeToString())

    async def close(self) -> None:
        await self._channel.close()


async def random_bytes(server: Server, draw: random.Random) -> None:
    for _ in range(40):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with suppress(OSError):
            if draw.random() < 0.7:
                writer.write(PREFACE)
            for _ in range(draw.randrange(4)):
                size, kind = draw.randrange(200), draw.randrange(12)
                writer.write(size.to_bytes(3, "big") + bytes([kind]) + draw.randbytes(5 + size))
            writer.write(draw.randbytes(draw.randrange(2_000)))
            await writer.drain()
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.read(100), 0.02)
        writer.close()


async def invalid_messages(server: Server, draw: random.Random) -> None:
    for number in range(20):
        attacker = Attacker(server)
        if number % 2:
            await attacker.join("eve")
        await attacker.send(draw.randbytes(draw.randrange(1, 300)))
        if number % 3:
            await attacker.hear()
        await attacker.close()


def mutated(report: Report, draw: random.Random) -> bytes:
    """Return a report with a wrong field, and sometimes with random bytes changed too."""
    match draw.randrange(8):
        case 0:
            report.applied_improvements = draw.randrange(2**64)
        case 1:
            report.skipped_improvements = draw.randrange(2**64)
        case 2:
            report.phase, report.phase_env_steps = draw.randrange(4), draw.randrange(2**64)
        case 3:
            report.id.epoch, report.id.number = draw.randrange(3), draw.randrange(2**64)
        case 4:
            report.values.shape[:] = [draw.randrange(2**32) for _ in range(draw.randrange(40))]
        case 5:
            kinds = ("float32", "float64", "object", "O", "", "void", "x" * 999)
            report.values.dtype = draw.choice(kinds)
        case 6:
            values = np.array([[draw.choice((np.nan, np.inf, -1e38))] * 4] * 4, dtype=np.float32)
            report.values.CopyFrom(pack(values))
        case 7:
            report.values.CopyFrom(Tensor(dtype="float32", shape=[2**31, 2**31], data=b"1234"))
    content = bytearray(FromMember(report=report).SerializeToString())
    if draw.random() < 0.2:
        for _ in range(3):
            content[draw.randrange(len(content))] = draw.randrange(256)
    return bytes(content)


def answer_to(order: Order) -> Report:
    report = Report(id=order.id)
    if order.HasField("learn"):
        report.phase, report.phase_env_steps = order.learn.phase, order.learn.env_steps
    else:
        B = list(order.query.states.shape)[:1] or [1]
        report.values.CopyFrom(pack(np.zeros((*B, 4), dtype=np.float32)))
    return report


async def wrong_answers(server: Server, draw: random.Random) -> None:
    """Use a new name each time: a member is quarantined after three refused answers in a row."""
    for number in range(12):
        attacker = Attacker(server)
        await attacker.join(f"eve{number}")
        for _ in range(20):
            message = await attacker.hear()
            if message is None or message.HasField("goodbye"):
                break
            if message.HasField("order"):
                await attacker.send(mutated(answer_to(message.order), draw))
        await attacker.close()


async def too_many_messages(server: Server, draw: random.Random) -> None:
    attacker = Attacker(server)
    await attacker.join("flood")
    content = FromMember(report=Report()).SerializeToString()
    for _ in range(2_000):
        if attacker.call.done():
            break
        await attacker.send(content)  # it is read slowly, and late with its learning
    await attacker.close()


async def too_large_messages(server: Server, draw: random.Random) -> None:
    """Send messages that are valid but too large, a little and by far."""
    allowed = f"allowed: {MOST_BYTES:,}"
    by_far = f"if it still runs: perhaps by a message above {2 * MOST_BYTES:,} bytes"
    no_hello = "the peer ended the stream without a Hello"
    for joined, factor, why in (
        *((False, 1.5, allowed), (True, 1.5, allowed)),
        *((False, 3, no_hello), (True, 3, by_far)),
    ):
        values = pack(np.zeros((int(factor * MOST_BYTES) // 16, 4), dtype=np.float32))
        content = FromMember(report=Report(values=values)).SerializeToString()
        attacker = Attacker(server)
        if joined:
            await attacker.join("large")
            welcome = await attacker.hear()
            assert welcome is not None
            assert welcome.HasField("welcome")
        await attacker.send(content)
        while await attacker.hear() is not None:  # the code comes after the messages
            pass
        # A message that is too large by far is gRPC's to refuse; under load it may only cancel.
        codes = {"RESOURCE_EXHAUSTED"} if factor < 2 else {"RESOURCE_EXHAUSTED", "CANCELLED"}
        assert (await asyncio.wait_for(attacker.call.code(), 10)).name in codes
        who = "large " if joined else "ipv4:127.0.0.1:"
        await server.reach(partial(_logged, server, who, why))
        await attacker.close()


def _logged(server: Server, *words: str) -> bool:
    return any(all(word in event.text for word in words) for event in server.roster.log.events)


async def short_connections(server: Server, draw: random.Random) -> None:
    for number in range(30):
        attacker = Attacker(server)
        for _ in range(draw.randrange(3)):  # also a second Hello
            await attacker.join(f"ghost{number % 3}")
        if draw.random() < 0.3:
            await attacker.send(b"")
        await attacker.close()


ATTACKS: tuple[Attack, ...] = (
    random_bytes,
    invalid_messages,
    wrong_answers,
    too_many_messages,
    too_large_messages,
    short_connections,
)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_federation_finishes_under_attack(
    attack: Attack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unexpected: list[dict[str, Any]] = []

    async def run() -> None:
        handle = asyncio.get_running_loop().set_exception_handler
        handle(lambda loop, context: unexpected.append(context))
        async with (
            serving(tmp_path / "home", TEXT) as server,
            members_of(tmp_path, server.address) as members,
        ):
            members.join("ann", Recorder(0, learn_seconds=0.02))
            members.join("bob", Recorder(1, learn_seconds=0.02))
            await server.reach(lambda: server.roster.improvements >= 3)
            await asyncio.wait_for(attack(server, random.Random(7)), 30)
            await server.finish()
            await members.finish()

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert_finished(tmp_path / "home", tmp_path, ("ann", "bob"), BUDGET)
    assert_exact_shares(tmp_path / "home", BUDGET)
    for name in ("ann", "bob"):
        account = accounts(tmp_path / "home")[name]
        assert (account.connections, account.refused_answers) == (1, 0)
    assert "Unexpected" not in caplog.text  # gRPC's log message for an exception in our code
    # Ignore gRPC's event loops of the member threads, which end one after another in this test.
    ours = [found for found in unexpected if "PollerCompletionQueue" not in str(found)]
    assert not ours

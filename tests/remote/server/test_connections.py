"""Connections that break, hang, are slow or are doubled: no work is lost or repeated."""

import asyncio
import logging
import random
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedhql.errors import MemberRefused
from fedhql.remote.server import listener, rate_limit
from fedhql.remote.wire import join_method
from fedhql.remote.wire_pb2 import Cause, FromMember, FromServer, Goodbye, Hello
from tests.remote.federating import (
    accounts,
    assert_finished,
    events,
    federation,
    members_of,
    serving,
    until,
)
from tests.remote.proxy import proxy_to
from tests.remote.recording import Recorder

NAMES = ("ann", "bob", "cyd")
BUDGET = 240  # ten rounds


def test_repeatedly_cut_connections_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limit, "CONNECTIONS_AT_ONCE", 1_000)  # the test reconnects often
    draw = random.Random(5)

    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET, return_seconds=30)) as server,
            proxy_to(server.port) as proxy,
            members_of(tmp_path, server.address) as members,
        ):
            members.join("ann", Recorder(1, improve_seconds=0.01), address=proxy.address)
            members.join("bob", Recorder(2, improve_seconds=0.01))
            members.join("cyd", Recorder(3), address=proxy.address)
            while not server.work.done():
                await asyncio.sleep(draw.uniform(0.0, 0.15))
                proxy.cut()
                if proxy.accepted > 40:
                    break
            await server.finish()
            await members.finish()
            assert proxy.accepted > 10

    asyncio.run(run())
    assert_finished(tmp_path / "home", tmp_path, NAMES, BUDGET)
    assert accounts(tmp_path / "home")["ann"].connections > 4


def test_a_federation_finishes_over_slow_connections(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET // 5, quorum=3, start_with=3)) as server,
            proxy_to(server.port) as proxy,
            members_of(tmp_path, server.address) as members,
        ):
            proxy.delay_seconds = 0.02
            for name in NAMES:
                members.join(name, address=proxy.address)
            await server.finish()
            await members.finish()

    asyncio.run(run())
    assert_finished(tmp_path / "home", tmp_path, NAMES, BUDGET // 5)


@pytest.mark.parametrize("notices", ["member", "server"])
def test_a_half_open_connection_is_detected(notices: str, tmp_path: Path) -> None:
    """Either side can notice alone. If only the member does, its new connection counts."""
    text = federation(
        BUDGET, exchange_deadline_seconds=0.5, keepalive_seconds=0.3 if notices == "server" else 60
    )

    async def run() -> None:
        async with (
            serving(tmp_path / "home", text) as server,
            proxy_to(server.port) as proxy,
            members_of(tmp_path, server.address) as members,
        ):
            # If only the server can notice, ann reconnects only when the stream ends.
            keepalive_seconds = 0.3 if notices == "member" else 60.0
            members.join("ann", address=proxy.address, keepalive_seconds=keepalive_seconds)
            members.join("bob")
            members.join("cyd")
            await server.reach(lambda: server.roster.improvements >= 3)
            proxy.stall()
            if notices == "server":
                await server.reach(lambda: "ann" not in server.roster.sessions)
                proxy.cut()
            await server.finish()
            await members.finish()
            assert proxy.accepted >= 2  # late pings on a busy machine add more

    asyncio.run(run())
    assert_finished(tmp_path / "home", tmp_path, NAMES, BUDGET)
    assert accounts(tmp_path / "home")["ann"].connections >= 2


def test_a_second_connection_of_a_member_replaces_the_first(tmp_path: Path) -> None:
    """The older connection gets the reason."""

    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET)) as server,
            members_of(tmp_path, server.address) as members,
        ):
            older = members.join("ann", home=tmp_path / "older")
            members.join("bob")
            members.join("cyd")
            await server.reach(lambda: server.roster.improvements >= 3)
            members.join("ann")
            with pytest.raises(MemberRefused, match="another process has connected as ann"):
                await asyncio.wait_for(older, 10)
            await server.finish()
            await members.finish()

    asyncio.run(run())
    # The newer process had no state, so the server sent it every improvement again.
    assert_finished(tmp_path / "home", tmp_path, NAMES, BUDGET, killed=("ann",))
    assert "ann reconnected with 0 improvements" in events(tmp_path / "home")


async def hello(channel: grpc.aio.Channel, name: str) -> tuple[Any, FromServer]:
    """Open a stream with a Hello; return the stream and the reply."""
    call = join_method(channel)()
    await call.write(FromMember(hello=Hello(protocol=1, name=name)))
    return call, await asyncio.wait_for(call.read(), 10)


def test_a_member_that_connects_too_often_is_told_to_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rate_limit, "CONNECTIONS_AT_ONCE", 3)
    monkeypatch.setattr(rate_limit, "CONNECTIONS_PER_SECOND", 1e-9)

    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET)) as server,
            grpc.aio.insecure_channel(server.address) as channel,
        ):
            for kind in ("welcome", "welcome", "welcome", "goodbye", "goodbye"):
                call, answer = await hello(channel, "eve")
                assert answer.WhichOneof("message") == kind
                call.cancel()
            assert answer.goodbye.reason == Goodbye.STOPPED
            assert answer.goodbye.detail == "eve connects too often; try again later"
            _, answer = await hello(channel, "mal")  # the limit of eve does not affect others
            assert answer.HasField("welcome")

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert accounts(tmp_path / "home")["eve"].connections == 3
    assert caplog.text.count("eve connects too often") == 1  # repeats are not logged
    assert "too often" not in events(tmp_path / "home")


def test_a_rate_limited_member_gets_in_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rate_limit, "CONNECTIONS_AT_ONCE", 1)

    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET)) as server,
            proxy_to(server.port) as proxy,
            members_of(tmp_path, server.address) as members,
        ):
            members.join("ann", address=proxy.address)
            await server.reach(lambda: "ann" in server.roster.sessions)
            proxy.cut()
            await server.reach(lambda: "ann connects too often" in caplog.text)
            await server.reach(lambda: server.roster.members["ann"].connections == 2)

    with caplog.at_level(logging.INFO):
        asyncio.run(run())


def test_a_new_connection_does_not_reset_the_message_limit(tmp_path: Path) -> None:
    text = federation(BUDGET, most_messages_per_second=1e-6)  # one message, then no more

    async def run() -> None:
        async with (
            serving(tmp_path / "home", text) as server,
            grpc.aio.insecure_channel(server.address) as channel,
        ):
            call, _ = await hello(channel, "eve")
            await call.write(FromMember(goodbye=Goodbye(detail="one")))
            await server.reach(lambda: "eve says goodbye: one" in events(server.home))
            call, _ = await hello(channel, "eve")
            await call.write(FromMember(goodbye=Goodbye(detail="two")))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(call.read(), 0.5)  # it is connected, but not read
            assert "eve says goodbye: two" not in events(server.home)

    asyncio.run(run())


def test_the_streams_of_one_connection_are_limited(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET)) as server,
            grpc.aio.insecure_channel(server.address) as channel,
            grpc.aio.insecure_channel(
                server.address, [("grpc.use_local_subchannel_pool", 1)]
            ) as second,
        ):
            calls = [(await hello(channel, f"ann{n}"))[0] for n in range(listener.STREAMS)]
            waiting = asyncio.ensure_future(hello(channel, "eve"))
            _, answer = await hello(second, "mal")
            assert answer.HasField("welcome")
            assert "eve" not in server.roster.members
            calls[0].cancel()
            _, answer = await waiting
            assert answer.HasField("welcome")

    asyncio.run(run())


async def read_to_the_end(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


def test_an_expelled_member_that_does_not_read_is_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(listener, "GOODBYE_SECONDS", 0.05)
    content = FromServer(goodbye=Goodbye(detail="x" * 1_000_000)).SerializeToString()

    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET)) as server,
            grpc.aio.insecure_channel(server.address) as channel,
        ):
            call, _ = await hello(channel, "eve")
            session = server.roster.sessions["eve"]
            for _ in range(100):  # far more than gRPC buffers
                session.outbox.put_nowait(content)
            server.roster.expel(session, "for a test", Cause.CAUSE_UNSPECIFIED)
            text = "eve is disconnected: it does not read the messages sent to it"
            await server.reach(lambda: text in events(server.home))
            with pytest.raises(grpc.aio.AioRpcError) as end:
                await read_to_the_end(call)
            assert end.value.code() is grpc.StatusCode.ABORTED

    asyncio.run(run())


def test_a_refused_peer_that_does_not_read_gets_a_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "GOODBYE_SECONDS", 0)  # nobody reads as fast as that

    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET)) as server,
            grpc.aio.insecure_channel(server.address) as channel,
        ):
            call = join_method(channel)()
            await call.write(FromMember(hello=Hello(protocol=1, name="no name/at all")))
            with pytest.raises(grpc.aio.AioRpcError, match="the member name must consist"):
                await asyncio.wait_for(read_to_the_end(call), 10)

    asyncio.run(run())


def test_exchanges_go_on_without_a_slow_member_and_it_still_finishes(tmp_path: Path) -> None:
    text = federation(8 * BUDGET, exchange_deadline_seconds=0.15, return_seconds=20)

    async def run() -> list[float]:
        async with (
            serving(tmp_path / "home", text) as server,
            members_of(tmp_path, server.address) as members,
        ):
            members.join("ann", Recorder(1, answer_seconds=0.4))
            members.join("bob")
            members.join("cyd")
            await server.finish()
            await members.finish()
            return list(server.roster.latencies.recent)

    exchange_seconds = asyncio.run(run())
    assert_finished(tmp_path / "home", tmp_path, NAMES, 8 * BUDGET)
    assert accounts(tmp_path / "home")["ann"].late_answers >= 1
    # The others wait for ann once, and then again after pauses that double each time.
    timed_out = [seconds for seconds in exchange_seconds if seconds >= 0.15]
    assert 1 <= len(timed_out) <= 8
    assert len(exchange_seconds) > 400


def test_a_wrong_wall_clock_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No message, timeout or record depends on the time of day."""
    wall = time.time
    draw = random.Random(3)
    monkeypatch.setattr("time.time", lambda: wall() + draw.uniform(-1e5, 1e5))

    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET // 5, quorum=3, start_with=3)) as server,
            members_of(tmp_path, server.address) as members,
        ):
            for name in NAMES:
                members.join(name)
            await until(lambda: server.roster.improvements > 0, server.work)
            await server.finish()
            await members.finish()

    asyncio.run(run())
    assert_finished(tmp_path / "home", tmp_path, NAMES, BUDGET // 5)

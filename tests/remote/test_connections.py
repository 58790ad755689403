"""Connections that break, hang, are slow or are there twice: nothing is lost, nothing doubled."""

import asyncio
import random
import time
from pathlib import Path

import pytest

from fedhql.errors import MemberRefused
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


def test_a_connection_that_is_cut_again_and_again(tmp_path: Path) -> None:
    draw = random.Random(5)

    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET, return_seconds=3)) as server,
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


def test_a_slow_connection(tmp_path: Path) -> None:
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
def test_a_connection_that_is_half_open(notices: str, tmp_path: Path) -> None:
    """Either side finds out by itself; if it is the member alone, its new connection counts."""
    text = federation(
        BUDGET, exchange_deadline_seconds=0.5, keepalive_seconds=0.3 if notices == "server" else 60
    )

    async def run() -> None:
        async with (
            serving(tmp_path / "home", text) as server,
            proxy_to(server.port) as proxy,
            members_of(tmp_path, server.address) as members,
        ):
            # With nobody but the server to notice, only an end of the stream brings ann back.
            keepalive_seconds = 0.3 if notices == "member" else 60.0
            members.join("ann", address=proxy.address, keepalive_seconds=keepalive_seconds)
            members.join("bob")
            members.join("cyd")
            await server.reach(lambda: server.hub.improvements >= 3)
            proxy.stall()
            if notices == "server":
                await server.reach(lambda: "ann" not in server.hub.sessions)
                proxy.cut()
            await server.finish()
            await members.finish()
            assert proxy.accepted == 2

    asyncio.run(run())
    assert_finished(tmp_path / "home", tmp_path, NAMES, BUDGET)
    assert accounts(tmp_path / "home")["ann"].connections == 2


def test_two_connections_of_one_member(tmp_path: Path) -> None:
    """The newer one counts, and the older one hears why."""

    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET)) as server,
            members_of(tmp_path, server.address) as members,
        ):
            older = members.join("ann", home=tmp_path / "older")
            members.join("bob")
            members.join("cyd")
            await server.reach(lambda: server.hub.improvements >= 3)
            members.join("ann")
            with pytest.raises(MemberRefused, match="another process has connected as ann"):
                await asyncio.wait_for(older, 10)
            await server.finish()
            await members.finish()

    asyncio.run(run())
    # The newer one knew nothing; all that the older one was told it was told again, and no more.
    assert_finished(tmp_path / "home", tmp_path, NAMES, BUDGET, killed=("ann",))
    assert "ann comes back with 0 improvements" in events(tmp_path / "home")


def test_a_slow_member_is_not_waited_for_and_not_lost(tmp_path: Path) -> None:
    text = federation(BUDGET // 2, exchange_deadline_seconds=0.15, return_seconds=20)

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
            return list(server.hub.latencies.recent)

    exchange_seconds = asyncio.run(run())
    assert_finished(tmp_path / "home", tmp_path, NAMES, BUDGET // 2)
    assert accounts(tmp_path / "home")["ann"].late_answers >= 1
    # It is asked again only when it has answered, and meanwhile the others go on without it.
    in_vain = [seconds for seconds in exchange_seconds if seconds >= 0.15]
    assert 1 <= len(in_vain) < len(exchange_seconds) / 2


def test_a_member_whose_clock_is_hours_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is sent, waited for or kept has to do with the time of day."""
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
            await until(lambda: server.hub.improvements > 0, server.work)
            await server.finish()
            await members.finish()

    asyncio.run(run())
    assert_finished(tmp_path / "home", tmp_path, NAMES, BUDGET // 5)

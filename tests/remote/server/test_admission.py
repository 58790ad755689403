"""Who is not let in: both sides know why, and the others do not notice."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedhql.errors import MemberRefused, SettingsError
from fedhql.remote.identity.credentials import Credentials, channel_credentials
from fedhql.remote.server import admission, listener
from fedhql.remote.server.listener import Listener, is_loopback
from fedhql.remote.wire import join_method
from fedhql.remote.wire_pb2 import FromMember, FromServer, Goodbye, Hello, Report
from fedhql.service.member_agent import agent_builder
from tests.remote.authority import Authority
from tests.remote.federating import (
    accounts,
    assert_finished,
    events,
    federation,
    members_of,
    serving,
    until,
)

BUDGET = 96
HOST = "127.0.0.1"


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certs")


async def told(call: Any) -> FromServer:
    message: FromServer = await asyncio.wait_for(call.read(), 10)
    return message


async def says(channel: grpc.aio.Channel, hello: Hello) -> Goodbye:
    """What a server answers to a stranger's first message."""
    call = join_method(channel)()
    await call.write(FromMember(hello=hello))
    answer = await told(call)
    assert answer.WhichOneof("message") == "goodbye"
    return answer.goodbye


def test_certificates_that_are_not_accepted(
    tmp_path: Path,
    ours: Authority,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """TLS itself ends these; gRPC's own log has the reason, and a member says what it can."""
    server_shows = ours.make("server", hosts=(HOST,))
    ann, bob = ours.make("ann"), ours.make("bob")
    foreign = Authority(tmp_path / "foreign").make("eve")
    seen = "on seeing our certificate"
    wrong: dict[str, tuple[Credentials | None, str]] = {
        "other-authority": (Credentials(ann.authority, foreign.certificate, foreign.key), seen),
        "expired": (ours.make("old", days_ago=40), seen),
        "does-not-trust-us": (foreign, "unable to get local issuer certificate"),
        "none": (None, "Socket closed"),
    }

    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET), credentials=server_shows) as server,
            members_of(tmp_path, server.address) as members,
        ):
            for name, (shown, reason) in wrong.items():
                task = members.join(name, credentials=shown)
                await until(partial(_logged, caplog, name, reason), task)
                await members.leave(name)
            members.join("ann", credentials=ann)
            members.join("bob", credentials=bob)
            await server.finish()
            await members.finish()

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert_finished(tmp_path / "home", tmp_path, ("ann", "bob"), BUDGET)
    assert accounts(tmp_path / "home").keys() == {"ann", "bob"}
    assert "certificate has expired" in capfd.readouterr().err


def _logged(caplog: pytest.LogCaptureFixture, name: str, reason: str) -> bool:
    lines = [record.getMessage() for record in caplog.records]
    return any(line.startswith(f"{name}:") and reason in line for line in lines)


def test_a_server_under_another_name_is_not_spoken_to(
    tmp_path: Path, ours: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere, ann = ours.make("server", hosts=("elsewhere.example",)), ours.make("ann")

    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET), credentials=elsewhere) as server,
            members_of(tmp_path, server.address) as members,
        ):
            task = members.join("ann", credentials=ann)
            await until(
                lambda: _logged(caplog, "ann", "the certificate of 127.0.0.1 is not accepted here"),
                task,
            )
        assert not server.roster.members

    asyncio.run(run())


def test_revoked_certificates(
    tmp_path: Path,
    ours: Authority,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before they come, and while they are there."""
    monkeypatch.setattr(listener, "LOOK_SECONDS", 0.1)
    server_shows = ours.make("server", hosts=(HOST,))
    shown = {name: ours.make(name) for name in ("ann", "bob", "eve", "mal")}
    ours.revoke("eve")
    text = federation(
        10 * BUDGET, exchange_deadline_seconds=1, learning_deadline_seconds=0.5, return_seconds=0.5
    )

    async def run() -> None:
        async with (
            serving(
                tmp_path / "home", text, credentials=server_shows, revoked=ours.revoked
            ) as server,
            members_of(tmp_path, server.address) as members,
        ):
            with pytest.raises(MemberRefused, match=r"certificate of eve .* is revoked"):
                await asyncio.wait_for(members.join("eve", credentials=shown["eve"]), 10)
            mal = members.join("mal", credentials=shown["mal"])
            await server.reach(lambda: "mal" in server.roster.sessions)
            good = ours.revoked.read_bytes()
            ours.revoked.write_text("half a file")  # nobody is sent away because of that,
            await server.reach(lambda: "not a list of revoked" in events(tmp_path / "home"))
            later = members.join("ann", credentials=shown["ann"])  # or comes in,
            await until(lambda: _logged(caplog, "ann", "cannot be used"), later)
            assert not mal.done()
            ours.revoked.write_bytes(good)
            ours.revoke("mal")
            with pytest.raises(MemberRefused, match=r"certificate of mal .*is revoked"):
                await asyncio.wait_for(mal, 5)
            members.join("bob", credentials=shown["bob"])  # and ann tries again by herself
            await server.finish()
            await members.finish("ann", "bob")

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert "eve (serial" in caplog.text
    assert "mal is away: the certificate of mal is revoked" in events(tmp_path / "home")
    assert_finished(tmp_path / "home", tmp_path, ("ann", "bob"), 10 * BUDGET)


Change = Callable[[Hello], object]
WRONG: dict[str, tuple[Change, str]] = {
    "protocol": (
        lambda hello: setattr(hello, "protocol", 99),
        "ann speaks protocol 99, this server 1",
    ),
    "another's name": (
        lambda hello: setattr(hello, "name", "bob"),
        "the certificate is ann's, the name given is 'bob'",
    ),
    "another federation": (
        lambda hello: setattr(hello, "federation", "f00"),
        "ann belongs to federation f00",
    ),
    "from the future": (
        lambda hello: setattr(hello, "applied_improvements", 7),
        "ann has applied 7 improvements, this server has sent 0",
    ),
}


def test_first_messages_that_are_refused(
    tmp_path: Path, ours: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    server_shows = ours.make("server", hosts=(HOST,))
    ann, eve = channel_credentials(ours.make("ann")), channel_credentials(ours.make("eve"))
    text = federation(BUDGET, members=["ann", "bob"])

    async def run() -> None:
        async with serving(tmp_path / "home", text, credentials=server_shows) as server:
            async with grpc.aio.secure_channel(server.address, ann) as channel:
                for change, reason in WRONG.values():
                    hello = Hello(protocol=1, name="ann")
                    change(hello)
                    answer = await says(channel, hello)
                    assert answer.reason == Goodbye.REFUSED
                    assert reason in answer.detail
                    assert reason in caplog.text
                call = join_method(channel)()
                await call.write(FromMember(report=Report()))
                assert "must be a Hello" in (await told(call)).goodbye.detail
            async with grpc.aio.secure_channel(server.address, eve) as channel:
                answer = await says(channel, Hello(protocol=1, name="eve"))
                assert answer.detail == "eve is not among the members of this federation"
            assert not server.roster.members

    with caplog.at_level(logging.INFO):
        asyncio.run(run())


def test_a_name_has_to_be_one(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET)) as server,
            grpc.aio.insecure_channel(server.address) as channel,
        ):
            for name in ("", "x" * 65, "a\nb", "[/x]", "a b", "ä"):
                answer = await says(channel, Hello(protocol=1, name=name))
                assert "1 to 64 letters, digits, '-', '_' and '.'" in answer.detail
            assert not server.roster.members

    asyncio.run(run())


def test_what_a_peer_writes_begins_no_line_and_moves_no_cursor(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    forged = "\n2026-01-01 INFO all is well\x1b[2J"

    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET)) as server,
            grpc.aio.insecure_channel(server.address) as channel,
        ):
            answer = await says(channel, Hello(protocol=1, name="ann", federation=forged))
            assert r"federation \n2026-01-01 INFO all is well\x1b[2J, this is" in answer.detail
            call = join_method(channel)()
            await call.write(FromMember(hello=Hello(protocol=1, name="ann")))
            await call.write(FromMember(goodbye=Goodbye(detail=forged)))
            await server.reach(lambda: "ann is away: it said goodbye" in events(server.home))

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    texts = [record.getMessage() for record in caplog.records]
    assert r"ann says goodbye: \n2026-01-01 INFO all is well\x1b[2J" in texts
    assert all(text.isprintable() for text in texts)


def test_the_list_of_revoked_certificates_is_read_once_a_look(
    tmp_path: Path, ours: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are here."""
    server_shows = ours.make("server", hosts=(HOST,))
    shown = {name: ours.make(name) for name in ("ann", "bob")}
    done: list[str] = []

    def count(what: str, where: Any, function: str) -> None:
        whole: Callable[..., Any] = getattr(where, function)

        def counted(*arguments: Any) -> Any:
            done.append(what)
            return whole(*arguments)

        monkeypatch.setattr(where, function, counted)

    monkeypatch.setattr(listener, "LOOK_SECONDS", 0.05)
    count("look", Listener, "_lose_patience")
    count("read", admission, "read_revoked")

    async def run() -> None:
        text = federation(BUDGET, start_with=3)  # nobody else comes, so nothing begins
        async with (
            serving(
                tmp_path / "home", text, credentials=server_shows, revoked=ours.revoked
            ) as server,
            members_of(tmp_path, server.address) as members,
        ):
            for name, credentials in shown.items():
                members.join(name, credentials=credentials)
            await server.reach(lambda: len(server.roster.sessions) == 2)
            done.clear()
            await server.reach(lambda: done.count("look") >= 3)
            assert abs(done.count("read") - done.count("look")) <= 1

    asyncio.run(run())


def test_who_says_nothing_is_sent_away_and_may_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "HELLO_SECONDS", 0.1)

    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET)) as server,
            grpc.aio.insecure_channel(server.address) as channel,
        ):
            goodbye = (await told(join_method(channel)())).goodbye
            assert goodbye.reason == Goodbye.STOPPED
            assert "no Hello" in goodbye.detail

    asyncio.run(run())


def test_a_member_with_other_states_or_actions_leaves(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET)) as server,
            members_of(tmp_path, server.address) as members,
        ):
            for name, environment in (("eve", "Taxi-v4"), ("mal", "CartPole-v1")):
                build = agent_builder("tabular", [], 0, environment)
                with pytest.raises(MemberRefused, match="the environment's states and actions are"):
                    await asyncio.wait_for(members.join(name, build), 10)
            members.join("ann")
            members.join("bob")
            await server.finish()
            await members.finish("ann", "bob")

    asyncio.run(run())
    assert_finished(tmp_path / "home", tmp_path, ("ann", "bob"), BUDGET)
    assert "eve says goodbye: the environment's states and actions" in events(tmp_path / "home")


def test_where_a_server_does_not_listen(tmp_path: Path) -> None:
    """Where another one does, and where strangers could come in without certificates."""

    async def run() -> None:
        async with serving(tmp_path / "one", federation(BUDGET)) as server:
            for address in ("0.0.0.0:0", "127.0.0.1.nip.io:1"):
                with pytest.raises(SettingsError, match="without certificates only this machine"):
                    await server.listener.open(address)
            with pytest.raises(SettingsError, match="cannot be listened on"):
                async with serving(tmp_path / "two", federation(BUDGET), port=server.port):
                    pass

    asyncio.run(run())


@pytest.mark.parametrize("address", ["localhost:1", "127.0.0.1:7443", "127.9.9.9:1", "[::1]:7443"])
def test_this_machine(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address",
    [
        "localhost.evil.example:1",
        "127.evil.example.org:7443",
        "127.0.0.1.nip.io:1",
        "::1234:7443",
        "[::1234]:7443",
        "[::1].evil.example:1",
        "0.0.0.0:1",
        "[::]:1",
        "10.0.0.1:1",
        "fed.example.org:1",
        ":1",
        "",
    ],
)
def test_another_machine(address: str) -> None:
    assert not is_loopback(address)

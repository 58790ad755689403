"""Admission: both sides learn why a peer is refused, and other members are not affected."""

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
from fedhql.remote.server.address import is_loopback
from fedhql.remote.server.listener import Listener
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
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certs")


async def next_message(call: Any) -> FromServer:
    return await asyncio.wait_for(call.read(), 10)


async def refusal_of(channel: grpc.aio.Channel, hello: Hello) -> Goodbye:
    """Send a Hello that the server must refuse; return its Goodbye."""
    call = join_method(channel)()
    await call.write(FromMember(hello=hello))
    answer = await next_message(call)
    assert answer.WhichOneof("message") == "goodbye"
    return answer.goodbye


def test_a_connection_without_a_valid_certificate_fails(
    tmp_path: Path,
    authority: Authority,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """TLS ends these connections. The log of gRPC has the reason; a member logs what it knows."""
    server_shows = authority.make("server", hosts=(HOST,))
    ann, bob = authority.make("ann"), authority.make("bob")
    foreign = Authority(tmp_path / "foreign").make("eve")
    rejected = "the server rejected our certificate"
    wrong: dict[str, tuple[Credentials | None, str]] = {
        "other-authority": (Credentials(ann.authority, foreign.certificate, foreign.key), rejected),
        "expired": (authority.make("old", days_ago=40), rejected),
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
                if reason == rejected:  # it will be rejected always, so the member ends
                    with pytest.raises(MemberRefused, match=reason):
                        await asyncio.wait_for(task, 20)
                    del members.runs[name]
                    continue
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


def test_a_member_rejects_a_server_with_another_host_name(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere, ann = authority.make("server", hosts=("elsewhere.example",)), authority.make("ann")

    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET), credentials=elsewhere) as server,
            members_of(tmp_path, server.address) as members,
        ):
            task = members.join("ann", credentials=ann)
            await until(
                lambda: _logged(caplog, "ann", "the certificate of 127.0.0.1 is not accepted"),
                task,
            )
        assert not server.roster.members

    asyncio.run(run())


def test_a_revoked_member_is_refused_or_disconnected(
    tmp_path: Path,
    authority: Authority,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server checks before it admits a member and while the member is connected."""
    monkeypatch.setattr(listener, "LOOK_SECONDS", 0.1)
    server_shows = authority.make("server", hosts=(HOST,))
    shown = {name: authority.make(name) for name in ("ann", "bob", "eve", "mal")}
    authority.revoke("eve")
    text = federation(
        10 * BUDGET, exchange_deadline_seconds=1, learning_deadline_seconds=0.5, return_seconds=0.5
    )

    async def run() -> None:
        async with (
            serving(
                tmp_path / "home", text, credentials=server_shows, revoked=authority.revoked
            ) as server,
            members_of(tmp_path, server.address) as members,
        ):
            with pytest.raises(MemberRefused, match=r"certificate of eve .* is revoked"):
                await asyncio.wait_for(members.join("eve", credentials=shown["eve"]), 10)
            mal = members.join("mal", credentials=shown["mal"])
            await server.reach(lambda: "mal" in server.roster.sessions)
            good = authority.revoked.read_bytes()
            authority.revoked.write_text("half a file")  # connected members stay
            await server.reach(lambda: "not a list of revoked" in events(tmp_path / "home"))
            later = members.join("ann", credentials=shown["ann"])  # no new member gets in
            await until(lambda: _logged(caplog, "ann", "cannot be used"), later)
            assert not mal.done()
            authority.revoked.write_bytes(good)
            authority.revoke("mal")
            with pytest.raises(MemberRefused, match=r"certificate of mal .*is revoked"):
                await asyncio.wait_for(mal, 5)
            members.join("bob", credentials=shown["bob"])  # ann retries by herself
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
        "ann speaks protocol 99, but this server speaks protocol 1",
    ),
    "another's name": (
        lambda hello: setattr(hello, "name", "bob"),
        "the certificate is for ann, but the Hello gives the name 'bob'",
    ),
    "another federation": (
        lambda hello: setattr(hello, "federation", "f00"),
        "ann belongs to federation f00",
    ),
    "from the future": (
        lambda hello: setattr(hello, "applied_improvements", 7),
        "ann has applied 7 improvements, but this server has sent 0",
    ),
}


def test_a_wrong_first_message_is_refused(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    server_shows = authority.make("server", hosts=(HOST,))
    ann = channel_credentials(authority.make("ann"))
    eve = channel_credentials(authority.make("eve"))
    text = federation(BUDGET, members=["ann", "bob"])

    async def run() -> None:
        async with serving(tmp_path / "home", text, credentials=server_shows) as server:
            async with grpc.aio.secure_channel(server.address, ann) as channel:
                for change, reason in WRONG.values():
                    hello = Hello(protocol=1, name="ann")
                    change(hello)
                    answer = await refusal_of(channel, hello)
                    assert answer.reason == Goodbye.REFUSED
                    assert reason in answer.detail
                    assert reason in caplog.text
                call = join_method(channel)()
                await call.write(FromMember(report=Report()))
                assert "must be a Hello" in (await next_message(call)).goodbye.detail
            async with grpc.aio.secure_channel(server.address, eve) as channel:
                answer = await refusal_of(channel, Hello(protocol=1, name="eve"))
                assert answer.detail == "eve is not among the members of this federation"
            assert not server.roster.members

    with caplog.at_level(logging.INFO):
        asyncio.run(run())


def test_an_invalid_member_name_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET)) as server,
            grpc.aio.insecure_channel(server.address) as channel,
        ):
            for name in ("", "x" * 65, "a\nb", "[/x]", "a b", "ä", "consensus", "All"):
                answer = await refusal_of(channel, Hello(protocol=1, name=name))
                assert "1 to 64 letters, digits, '-', '_' and '.'" in answer.detail
                assert "reserved: 'consensus', 'all', 'policy.json'" in answer.detail
            assert not server.roster.members

    asyncio.run(run())


def test_control_characters_from_a_peer_are_escaped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    forged = "\n2026-01-01 INFO all is well\x1b[2J"

    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET)) as server,
            grpc.aio.insecure_channel(server.address) as channel,
        ):
            answer = await refusal_of(channel, Hello(protocol=1, name="ann", federation=forged))
            assert r"federation \n2026-01-01 INFO all is well\x1b[2J, but this is" in answer.detail
            call = join_method(channel)()
            await call.write(FromMember(hello=Hello(protocol=1, name="ann")))
            await call.write(FromMember(goodbye=Goodbye(detail=forged)))
            await server.reach(lambda: "ann is away: it said goodbye" in events(server.home))

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    texts = [record.getMessage() for record in caplog.records]
    assert r"ann says goodbye: \n2026-01-01 INFO all is well\x1b[2J" in texts
    assert all(text.isprintable() for text in texts)


def test_each_check_reads_the_list_of_revoked_certificates_once(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_shows = authority.make("server", hosts=(HOST,))
    shown = {name: authority.make(name) for name in ("ann", "bob")}
    calls: list[str] = []

    def count(what: str, owner: Any, function: str) -> None:
        original: Callable[..., Any] = getattr(owner, function)

        def counted(*arguments: Any) -> Any:
            calls.append(what)
            return original(*arguments)

        monkeypatch.setattr(owner, function, counted)

    monkeypatch.setattr(listener, "LOOK_SECONDS", 0.05)
    count("check", Listener, "_limit_ended_sessions")
    count("read", admission, "read_revoked")

    async def run() -> None:
        text = federation(BUDGET, start_with=3)  # only two members connect, so no round starts
        async with (
            serving(
                tmp_path / "home", text, credentials=server_shows, revoked=authority.revoked
            ) as server,
            members_of(tmp_path, server.address) as members,
        ):
            for name, credentials in shown.items():
                members.join(name, credentials=credentials)
            await server.reach(lambda: len(server.roster.sessions) == 2)
            calls.clear()
            await server.reach(lambda: calls.count("check") >= 3)
            assert abs(calls.count("read") - calls.count("check")) <= 1

    asyncio.run(run())


def test_a_silent_peer_is_disconnected_and_may_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "HELLO_SECONDS", 0.1)

    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET)) as server,
            grpc.aio.insecure_channel(server.address) as channel,
        ):
            goodbye = (await next_message(join_method(channel)())).goodbye
            assert goodbye.reason == Goodbye.STOPPED
            assert "no Hello" in goodbye.detail

    asyncio.run(run())


def test_a_member_with_different_states_or_actions_leaves(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET)) as server,
            members_of(tmp_path, server.address) as members,
        ):
            for name, environment in (("eve", "Taxi-v4"), ("mal", "CartPole-v1")):
                build = agent_builder(name, tmp_path, "tabular", [], 0, environment)
                with pytest.raises(MemberRefused, match="the environment's states and actions are"):
                    await asyncio.wait_for(members.join(name, build), 10)
            members.join("ann")
            members.join("bob")
            await server.finish()
            await members.finish("ann", "bob")

    asyncio.run(run())
    assert_finished(tmp_path / "home", tmp_path, ("ann", "bob"), BUDGET)
    assert "eve says goodbye: the environment's states and actions" in events(tmp_path / "home")


def test_a_server_refuses_used_ports_and_remote_plaintext(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path / "one", federation(BUDGET)) as server:
            for address in ("0.0.0.0:0", "127.0.0.1.nip.io:1"):
                with pytest.raises(SettingsError, match="without certificates only this machine"):
                    await server.listener.open(address)
            with pytest.raises(SettingsError, match="cannot listen there"):
                async with serving(tmp_path / "two", federation(BUDGET), port=server.port):
                    pass

    asyncio.run(run())


@pytest.mark.parametrize("address", ["localhost:1", "127.0.0.1:7443", "127.9.9.9:1", "[::1]:7443"])
def test_loopback_addresses_are_recognized(address: str) -> None:
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
def test_other_addresses_are_not_loopback(address: str) -> None:
    assert not is_loopback(address)

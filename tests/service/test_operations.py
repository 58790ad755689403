"""What an operator changes while the server runs, and how a monitor asks whether it is well."""

import asyncio
import signal
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fedhql.errors import SettingsError
from fedhql.remote.server.listener import HEALTH_OF
from fedhql.remote.wire_pb2 import Cause
from fedhql.service.operations import Operations, ask_to_release
from fedhql.settings.served import ServedSettings, read_served_settings
from tests.remote.federating import Server, federation, members_of, serving, until
from tests.remote.processes import processes
from tests.remote.raw_member import RawMember

BUDGET = 20_000


def operations(server: Server, before: str, after: str) -> Operations:
    settings: ServedSettings = read_served_settings(before)
    return Operations(
        server.home, settings, server.roster, server.task, lambda: read_served_settings(after)
    )


def test_a_member_that_is_no_longer_listed_leaves_and_a_new_one_joins(tmp_path: Path) -> None:
    before = federation(BUDGET, members=["ann", "bob", "eve"])
    after = federation(BUDGET, members=["ann", "bob", "cyd"], exchange_deadline_seconds=7)

    async def run() -> None:
        async with (
            serving(tmp_path / "home", before) as server,
            members_of(tmp_path, server.address) as members,
        ):
            members.join("ann")
            members.join("bob")
            eve = RawMember(server.address)
            running = asyncio.ensure_future(eve.run())
            await server.reach(lambda: server.roster.improvements > 3)
            operations(server, before, after).reload()
            await until(running.done)
            assert eve.goodbyes[0].cause == Cause.NOT_LISTED
            assert server.roster.settings.exchange_deadline_seconds == 7
            members.join("cyd")
            await server.reach(lambda: server.roster.members.get("cyd") is not None)
            text = server.roster.log.events
            assert any("exchange_deadline_seconds: 30.0 -> 7.0" in event.text for event in text)
            for name in ("ann", "bob", "cyd"):
                await members.leave(name)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (federation(BUDGET + 1), "budget.env_steps_per_agent is 20001 here"),
        (federation(BUDGET, mode="continuous"), "service.mode changes only when the server is"),
        (federation(BUDGET, quorum=9), "service.quorum is 9"),
        (federation(BUDGET, most_states=2), "service.most_states is 2; allowed: at least 4"),
    ],
)
def test_settings_that_cannot_change_are_kept(after: str, why: str, tmp_path: Path) -> None:
    before = federation(BUDGET)

    async def run() -> None:
        async with serving(tmp_path / "home", before) as server:
            operations(server, before, after).reload()
            assert why in server.roster.log.events[0].text
            assert "stay as they were" in server.roster.log.events[0].text
            assert server.roster.settings == read_served_settings(before).service

    asyncio.run(run())


def test_a_hangup_signal_makes_a_server_read_its_file_again(tmp_path: Path) -> None:
    with processes(tmp_path, federation(BUDGET)) as running:
        running.serve()
        file = tmp_path / "federation.toml"
        file.write_text(federation(BUDGET, quorum=1))
        running.running["server"].send_signal(signal.SIGHUP)
        running.until(lambda: "service.quorum: 2 -> 1" in running.log("server"), "server")
        file.write_text("[service]\nnonsense = 1\n")
        running.running["server"].send_signal(signal.SIGHUP)
        running.until(lambda: "stay as they were" in running.log("server"), "server")


def test_only_a_member_in_quarantine_can_be_released(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is not the home of a federation"):
        ask_to_release(tmp_path, "ann")

    async def run() -> None:
        async with serving(tmp_path, federation(BUDGET)):
            with pytest.raises(SettingsError, match="nobody is in quarantine"):
                ask_to_release(tmp_path, "../ann")

    asyncio.run(run())


def test_a_health_check_is_answered_while_the_server_accepts_members(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET)) as server,
            grpc.aio.insecure_channel(server.address) as channel,
        ):
            for service in HEALTH_OF:
                request = health_pb2.HealthCheckRequest(service=service)
                answer = await health_pb2_grpc.HealthStub(channel).Check(request)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING

    asyncio.run(run())

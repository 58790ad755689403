"""Members and machines that fail: what each fault costs the others, and where it shows.

The others' rounds must go on at no less than half their pace once a deadline has passed. That is a
loose bound for a busy machine, but a fault that cost a deadline in each round would slow them down
fifty times. `benchmarks/faults.py` measures the ratio.
"""

import asyncio
import json
import logging
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from typer.testing import CliRunner

from fedhql.cli.main import app
from fedhql.errors import JournalError, MemberRefused, MemberStopped, NoUsableAnswers
from fedhql.remote.member.masking import Masking
from fedhql.remote.server import deadlines, event_log, listener, membership, roster
from fedhql.remote.server.journal import Journal, MemberRecord
from fedhql.remote.wire import SERVICE, pack, pack_improvement, unpack
from fedhql.remote.wire_pb2 import Cause, FromMember, Goodbye, Order, Report
from fedhql.service.home import open_home
from fedhql.service.status_page import Observation
from fedhql.settings.served import read_served_settings
from tests.remote.federating import (
    Server,
    accounts,
    assert_exact_shares,
    assert_finished,
    assert_told_once,
    fact,
    federation,
    members_of,
    serving,
    until,
)
from tests.remote.raw_member import RawMember
from tests.remote.recording import Recorder

BUDGET = 20_000
DEADLINE = 1.0
GOOD = ("ann", "bob")
AWAY = 10_000


class Misbehaving(RawMember):
    """Behaves well until it is told to misbehave."""

    bad = False


class HungInLearning(Misbehaving):
    async def on_learn(self, order: Order) -> None:
        if not self.bad:
            await super().on_learn(order)


class HungInAnswering(Misbehaving):
    async def on_query(self, order: Order) -> None:
        if not self.bad:
            await super().on_query(order)


class OldPhase(Misbehaving):
    """Reports a phase that it has finished before, again and again."""

    async def on_learn(self, order: Order) -> None:
        if self.bad:
            phase, steps = self.phase
            await self.report(Report(id=order.id, phase=phase, phase_env_steps=steps))
        else:
            await super().on_learn(order)


class UnknownPhase(Misbehaving):
    """Reports a phase that was never ordered."""

    async def on_learn(self, order: Order) -> None:
        if self.bad:
            phase = order.learn.phase + 1
            await self.report(Report(id=order.id, phase=phase, phase_env_steps=1))
        else:
            await super().on_learn(order)


class SlowReader(Misbehaving):
    """Stops to read, but keeps the connection open."""

    async def on_query(self, order: Order) -> None:
        if self.bad:
            await asyncio.sleep(3_600)
        await super().on_query(order)


class JustLate(Misbehaving):
    """Answers a little after the deadline."""

    async def on_query(self, order: Order) -> None:
        if self.bad:
            await asyncio.sleep(DEADLINE + 0.02)
        await super().on_query(order)


class LateEverySecondTime(JustLate):
    """Answers every second question in time."""

    questions = 0

    async def on_query(self, order: Order) -> None:
        self.questions += 1
        if self.questions % 2:
            await super().on_query(order)
        else:
            await Misbehaving.on_query(self, order)


class Oversized(Misbehaving):
    """Sends an answer that is larger than the server accepts."""

    async def on_query(self, order: Order) -> None:
        if self.bad:
            values = np.zeros((200_000, self.actions), dtype=np.float32)
            await self.report(Report(id=order.id, values=pack(values)))
        else:
            await super().on_query(order)


class Lying(Misbehaving):
    """Answers NaN."""

    async def on_query(self, order: Order) -> None:
        if self.bad:
            rows = order.query.states.shape[0]
            values = np.full((rows, self.actions), np.nan, dtype=np.float32)
            await self.report(Report(id=order.id, values=pack(values)))
        else:
            await super().on_query(order)


@dataclass(frozen=True)
class Fault:
    """How a fault shows: words in the log, a metric with its value, and how eve is told."""

    kind: type[Misbehaving]
    words: str
    metric: str  # of eve; it is above 0
    cause: Cause | None
    states: tuple[str, ...]
    seconds: float = 2.5 * DEADLINE  # of each of the two windows


LATE = "eve is late with an answer"
FAULTS = {
    "hung in learning": Fault(
        HungInLearning, "eve is late with self-learning", "missed_phases_total",
        Cause.MISSED_DEADLINES, ("late", "away"),
    ),
    "hung in answering": Fault(
        HungInAnswering, LATE, "unanswered_questions_total", Cause.MISSED_DEADLINES,
        ("late", "away", "connected"),
    ),
    "old phase": Fault(
        OldPhase, "eve is late with self-learning", "missed_phases_total",
        Cause.MISSED_DEADLINES, ("late", "away"),
    ),
    "unknown phase": Fault(
        UnknownPhase, "a report of phase", "away", Cause.INVALID_MESSAGE, ("away",)
    ),
    "slow reader": Fault(SlowReader, LATE, "unanswered_questions_total", None, ("late", "away")),
    "just late": Fault(
        JustLate, LATE, "unanswered_questions_total", None, ("connected", "late"), 6 * DEADLINE
    ),
    "late every second time": Fault(
        LateEverySecondTime, LATE, "late_answers_total", None, ("connected", "late"), 6 * DEADLINE
    ),
    "oversized": Fault(
        Oversized, "a message of 3,200,", "away", Cause.MESSAGE_SIZE, ("away",)
    ),
    "lying": Fault(
        Lying, "eve is quarantined after 3 refused answers", "refused_answers_total",
        Cause.QUARANTINED, ("quarantined",),
    ),
}  # fmt: skip


@dataclass
class Pace:
    """Rounds a second of the others, before the fault and after its first deadline."""

    before: float = 0.0
    after: float = 0.0
    status: dict[str, Any] = field(default_factory=dict)
    metrics: str = ""


async def rounds_per_second(server: Server, seconds: float) -> float:
    begun, round_ = time.monotonic(), server.service.status("").round
    await asyncio.sleep(seconds)
    return (server.service.status("").round - round_) / (time.monotonic() - begun)


async def fetch(observation: Observation, path: str) -> str:
    def read() -> str:
        url = f"http://127.0.0.1:{observation.port}{path}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()

    return await asyncio.to_thread(read)


async def disturb(
    directory: Path, fault: Fault, seconds: float, disconnect_after: int = 2
) -> tuple[Pace, Misbehaving]:
    """Run ann and bob beside eve, who begins to misbehave, and measure their pace."""
    text = federation(
        BUDGET, start_with=3, exchange_deadline_seconds=DEADLINE,
        learning_deadline_seconds=DEADLINE, disconnect_after=disconnect_after,
        most_message_bytes=2 * 2**20, return_seconds=1,
    )  # fmt: skip
    pace = Pace()
    async with (
        serving(directory / "home", text) as server,
        members_of(directory, server.address) as members,
    ):
        for number, name in enumerate(GOOD):
            members.join(name, Recorder(number))
        eve = fault.kind(server.address)
        running = asyncio.ensure_future(eve.run())
        observation = Observation(lambda: server.service.status("f"), "127.0.0.1", 0)
        try:
            await server.reach(lambda: server.roster.improvements > 3)
            pace.before = await rounds_per_second(server, seconds)
            eve.bad = True
            logged = [event.text for event in server.roster.log.events]
            await server.reach(
                lambda: any(fault.words in event.text for event in server.roster.log.events)
            )
            assert not any(fault.words in text for text in logged)
            pace.after = await rounds_per_second(server, seconds)
            pace.status = json.loads(await fetch(observation, "/status.json"))
            pace.metrics = await fetch(observation, "/metrics")
        finally:
            observation.close()
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
        assert_exact_shares(directory / "home", BUDGET)
        for name in GOOD:
            await members.leave(name)
    return pace, eve


def assert_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """Check the log, without what asyncio says about the threads of this test's members."""
    ours = [record for record in caplog.records if record.name != "asyncio"]
    assert len(ours) > 5
    assert not any(record.exc_info for record in ours)
    assert not any("Traceback" in record.getMessage() for record in ours)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_costs_the_others_one_deadline_and_shows(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fault = FAULTS[name]
    with caplog.at_level(logging.INFO):
        pace, eve = asyncio.run(disturb(tmp_path, fault, fault.seconds))
    assert pace.after >= 0.5 * pace.before, pace
    assert_told_once(tmp_path / "home", tmp_path, GOOD, stopped=GOOD)
    (member,) = [each for each in pace.status["members"] if each["name"] == "eve"]
    assert member["state"] in fault.states
    assert any(fault.words in event["text"] for event in pace.status["events"])
    (line,) = [
        line for line in pace.metrics.splitlines()
        if line.startswith(f'fedhql_member_{fault.metric}{{member="eve"}}')
    ]  # fmt: skip
    assert float(line.split()[-1]) > 0
    if fault.cause is not None:
        assert eve.goodbyes[0].cause == fault.cause
        assert eve.goodbyes[0].detail
    assert fault.words in caplog.text
    assert_no_traceback(caplog)


def test_a_late_member_is_not_charged_for_later_rounds_and_comes_back(tmp_path: Path) -> None:
    text = federation(
        BUDGET, start_with=3, exchange_deadline_seconds=0.3, learning_deadline_seconds=0.3,
        disconnect_after=1_000,
    )  # fmt: skip

    async def run() -> None:
        async with (
            serving(tmp_path / "home", text) as server,
            members_of(tmp_path, server.address) as members,
        ):
            for number, name in enumerate(GOOD):
                members.join(name, Recorder(number))
            eve = HungInAnswering(server.address)
            running = asyncio.ensure_future(eve.run())
            record = server.roster.members
            await server.reach(lambda: server.roster.improvements > 3)
            eve.bad = True
            await server.reach(lambda: bool(record["eve"].late_with))
            round_ = server.service.status("").round
            await server.reach(lambda: server.service.status("").round > round_ + 1)
            share = record["eve"].share
            await server.reach(lambda: server.service.status("").round > round_ + 4)
            assert record["eve"].share == share
            eve.bad = False
            await eve.call.done_writing()  # it comes back
            await server.reach(lambda: record["eve"].share != share)
            assert not record["eve"].late_with
            running.cancel()
            for name in GOOD:
                await members.leave(name)

    asyncio.run(run())
    assert_exact_shares(tmp_path / "home", BUDGET)


def test_a_refused_answer_is_answered_before_quarantine(tmp_path: Path) -> None:
    async def run() -> Lying:
        async with (
            serving(tmp_path / "home", federation(BUDGET)) as server,
            members_of(tmp_path, server.address) as members,
        ):
            members.join("ann")
            eve = Lying(server.address)
            eve.bad = True
            running = asyncio.ensure_future(eve.run())
            await until(running.done)
            await members.leave("ann")
            return eve

    eve = asyncio.run(run())
    assert [notice.left for notice in eve.notices] == [2, 1, 0]
    assert {notice.cause for notice in eve.notices} == {Cause.ANSWER_VALUE}
    (goodbye,) = eve.goodbyes
    assert (goodbye.reason, goodbye.cause) == (Goodbye.REFUSED, Cause.QUARANTINED)


def test_two_connections_with_one_name_leave_a_trace(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET)) as server,
            members_of(tmp_path, server.address) as members,
        ):
            members.join("ann")
            eve, thief = RawMember(server.address), RawMember(server.address)
            running = asyncio.ensure_future(eve.run())
            await server.reach(lambda: server.roster.improvements > 1)
            address = server.roster.sessions["eve"].peer.address
            stealing = asyncio.ensure_future(thief.run())
            await until(running.done)
            assert eve.goodbyes[0].cause == Cause.SAME_NAME
            (status,) = [m for m in server.service.status("").members if m.name == "eve"]
            assert status.replaced_connections == 1
            text = next(e.text for e in server.roster.log.events if "while it was" in e.text)
            assert address in text
            assert status.address in text
            assert status.address != address
            stealing.cancel()
            await members.leave("ann")

    asyncio.run(run())


def test_a_message_of_the_member_that_is_too_late_for_its_order_changes_nothing(
    tmp_path: Path,
) -> None:
    """A report with another epoch is nobody's answer."""

    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET)) as server,
            members_of(tmp_path, server.address) as members,
        ):
            members.join("ann")
            eve = RawMember(server.address)
            running = asyncio.ensure_future(eve.run())
            await server.reach(lambda: server.roster.improvements > 1)
            for _ in range(20):
                await eve.send(FromMember(report=Report(applied_improvements=eve.applied)))
            improvements = server.roster.improvements
            await server.reach(lambda: server.roster.improvements > improvements + 3)
            assert accounts(tmp_path / "home")["eve"].late_answers == 0
            running.cancel()
            await members.leave("ann")

    asyncio.run(run())


def test_a_member_that_was_away_for_10_000_improvements_catches_up_in_pieces(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With gRPC's default limit of 4 MiB; they are 13 MB together."""
    text = federation(BUDGET, start_with=3, quorum=2).replace("query_batch = 4", "query_batch = 64")
    home = tmp_path / "home"
    journal, _ = open_home(home, read_served_settings(text))
    states, targets = np.zeros(64, dtype=np.int64), np.zeros(64, dtype=np.float32)
    for number in range(1, AWAY + 1):
        targets[0] = number
        improvement = pack_improvement(number, states, states, targets)
        journal.write(improvement=improvement, facts={"improvements": number})
    journal.write(members=[MemberRecord("eve", 0)])  # it joined before the first
    journal.close()

    async def run() -> RawMember:
        async with (
            serving(home, text) as server,
            members_of(tmp_path, server.address) as members,
        ):
            for number, name in enumerate(GOOD):
                members.join(name, Recorder(number))
            eve = RawMember(server.address)
            running = asyncio.ensure_future(eve.run())
            await server.reach(lambda: server.roster.improvements > AWAY + 3)
            await until(lambda: eve.applied > AWAY)
            running.cancel()
            for name in GOOD:
                await members.leave(name)
            return eve

    with caplog.at_level(logging.INFO):
        eve = asyncio.run(run())
    assert eve.connections == 1
    assert eve.improvements[:AWAY] == list(range(1, AWAY + 1))
    assert 2 * 2**20 < eve.largest_bytes <= 4 * 2**20
    assert_no_traceback(caplog)


def test_a_member_that_accepts_only_small_messages_is_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    async def run() -> RawMember:
        text = federation(BUDGET).replace("query_batch = 4", "query_batch = 64")
        async with serving(tmp_path / "home", text) as server:
            eve = RawMember(server.address, receive_bytes=2_000)
            await eve.run()
            assert server.roster.log.refused_connections == {"receive_limit": 1}
            return eve

    eve = asyncio.run(run())
    assert eve.goodbyes[0].cause == Cause.RECEIVE_LIMIT
    assert "eve accepts messages of 2,000 bytes" in eve.goodbyes[0].detail


class FullDisk(Journal):
    """A journal whose disk is full after some writes."""

    writes = 0

    def write(self, **content: Any) -> None:
        FullDisk.writes += 1
        if FullDisk.writes > 60 and self.is_usable:
            self._database.execute("PRAGMA max_page_count = 1")  # SQLite's own "disk is full"
            content = {**content, "facts": {**(content.get("facts") or {}), "x": "x" * 10**6}}
        super().write(**content)


def test_a_full_disk_stops_the_server_in_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> tuple[RawMember, str]:
        home, text = tmp_path / "home", federation(BUDGET)
        with pytest.raises(JournalError) as stopped:  # noqa: PT012, its end raises
            async with (
                serving(home, text, journal=FullDisk) as server,
                members_of(tmp_path, server.address) as members,
            ):
                members.join("ann")
                eve = RawMember(server.address)
                running = asyncio.ensure_future(eve.run())
                await until(server.work.done)
                await until(lambda: bool(eve.goodbyes))
                running.cancel()
                await members.leave("ann")
        return eve, str(stopped.value)

    with caplog.at_level(logging.INFO):
        eve, why = asyncio.run(run())
    assert "the journal cannot be written: database or disk is full" in why
    assert (eve.goodbyes[0].reason, eve.goodbyes[0].cause) == (
        Goodbye.STOPPED, Cause.SERVER_FAILED,
    )  # fmt: skip
    assert eve.goodbyes[0].retry_after_seconds > 0
    assert_no_traceback(caplog)
    assert_exact_shares(tmp_path / "home", BUDGET)


def test_a_member_whose_home_cannot_be_written_stops_in_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET, quorum=2)) as server,
            members_of(tmp_path, server.address) as members,
        ):
            for name in ("ann", "bob", "cyd"):
                members.join(name)
            await server.reach(lambda: server.roster.improvements > 3)
            (tmp_path / "cyd" / ".member.json.tmp").mkdir()
            with pytest.raises(MemberStopped, match="cyd cannot be written"):
                await members.finish("cyd")
            await server.reach(lambda: "cyd" not in server.roster.sessions)
            improvements = server.roster.improvements
            await server.reach(lambda: server.roster.improvements > improvements + 3)
            for name in GOOD:
                await members.leave(name)

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert "cyd says goodbye: it cannot save its state" in caplog.text
    assert_no_traceback(caplog)


def test_a_clock_that_is_moved_by_a_day_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> "Tomorrow":
            return super().now(tz) + timedelta(days=1)

    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(240, exchange_deadline_seconds=5)) as server,
            members_of(tmp_path, server.address) as members,
        ):
            for name in GOOD:
                members.join(name)
            await server.reach(lambda: server.roster.improvements > 3)
            for module in (deadlines, event_log, listener, membership, roster):
                monkeypatch.setattr(module, "datetime", Tomorrow)
            await server.finish()
            await members.finish()
            found = server.roster.members.values()
            assert all(m.unanswered_questions == m.missed_phases == 0 for m in found)

    asyncio.run(run())
    assert_finished(tmp_path / "home", tmp_path, GOOD, 240)


def test_secure_aggregation_that_gives_up_says_why_everywhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One of four sends words that do not add up, and nobody can tell which."""
    wrong = Masking.answer

    def spoil(self: Masking, order: Order, values: Any) -> Any:
        tensor = wrong(self, order, values)
        if self.key.name == "dan":
            words = unpack(tensor)
            words[0] += 1
            tensor = pack(words)
        return tensor

    names = ("ann", "bob", "cyd", "dan")
    secure = "[federation]\nsecure_aggregation = true\nsecure_value_bound = 10\n"
    chosen = {"members": names, "start_with": 4, "quorum": 3, "evaluate_members": False}
    text = federation(BUDGET, **chosen).replace("[federation]\n", secure)

    async def run() -> list[BaseException | None]:
        with pytest.raises(NoUsableAnswers, match="at least one of ann, bob, cyd, dan"):  # noqa: PT012
            async with (
                serving(tmp_path / "home", text) as server,
                members_of(tmp_path, server.address) as members,
            ):
                ends = [members.join(name, secure_aggregation=True) for name in names]
                await until(server.work.done)
                said = await asyncio.wait_for(asyncio.gather(*ends, return_exceptions=True), 20)
        return said

    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.INFO):
        patch.setattr(Masking, "answer", spoil)
        said = asyncio.run(run())
    why = "the federation stops: the masked answers of the cohort do not add up, 3 times in one "
    for error in said:
        assert isinstance(error, MemberRefused)
        assert why in str(error)
    assert_no_traceback(caplog)
    assert "closed database" not in caplog.text
    assert "do not add up, 3 times" in fact(tmp_path / "home", "stopped")["why"]
    shown = CliRunner().invoke(app, ["status", str(tmp_path / "home")]).stdout
    assert "stopped at" in shown
    assert "do not add up, 3 times" in shown


def test_a_member_that_was_busy_too_long_learns_that_it_was_disconnected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = federation(BUDGET, start_with=3, exchange_deadline_seconds=0.3, disconnect_after=2)

    async def run() -> None:
        async with (
            serving(tmp_path / "home", text) as server,
            members_of(tmp_path, server.address) as members,
        ):
            for number, name in enumerate(GOOD):
                members.join(name, Recorder(number))
            members.join("cyd", Recorder(2, answer_seconds=2.0))
            await until(lambda: "cyd: no connection" in caplog.text)
            for name in (*GOOD, "cyd"):
                await members.leave(name)

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    (line,) = [r.getMessage() for r in caplog.records if "cyd: no connection" in r.getMessage()]
    assert "the server ended the connection while the agent was busy; its log says why" in line
    assert "cyd is away: it missed 2 deadlines in a row, the last with an answer" in caplog.text


def test_a_hello_that_grows_when_it_is_unpacked_leaves_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET)) as server,
            grpc.aio.insecure_channel(server.address, compression=grpc.Compression.Gzip) as channel,
        ):
            for mebibytes in (20, 200):
                call: Any = channel.stream_stream(f"/{SERVICE}/Join")()
                await call.write(b"\0" * (mebibytes * 2**20))
                with suppress(grpc.aio.AioRpcError):  # the status, after a Goodbye if there is one
                    while await call.read() is not grpc.aio.EOF:
                        pass
                assert (await asyncio.wait_for(call.code(), 20)).name == "RESOURCE_EXHAUSTED"
            await server.reach(lambda: sum(server.roster.log.refused_connections.values()) == 2)

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert not any(record.exc_info for record in caplog.records)

"""Counters never go down: not when members reconnect, and not when the server is killed."""

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from fedhql.remote.server.deadlines import Work
from fedhql.remote.server.journal import Journal
from fedhql.remote.server.overview import members_status
from fedhql.remote.server.remote_cohort import RemoteCohort
from fedhql.remote.server.roster import Roster
from fedhql.remote.server.service_settings import ServiceSettings
from fedhql.remote.wire import WireError
from fedhql.remote.wire_pb2 import Cause, Report, Welcome
from fedhql.service.metrics import Collector
from tests.service.test_status_page import STATUS

NAMES = ("ann", "bob")
STATES = np.zeros((2, 4), dtype=np.float32)
SINCE_THE_START = ("fedhql_refused_connections_total", "fedhql_exchange_duration_seconds")
Counters = dict[tuple[str, str], float]


class Server:
    """A roster that the test drives, and restarts as if it had been killed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start()

    def _start(self) -> None:
        chosen = ServiceSettings(quarantine_after=1_000, disconnect_after=1_000, members=NAMES)
        self.roster = Roster(
            chosen, Journal(self._path), action_count=3, env_steps_per_member=10_000
        )

    def counters(self) -> Counters:
        """Return all counters of one scrape."""
        roster = self.roster
        status = replace(
            STATUS,
            members=members_status(roster, None),
            improvements=roster.improvements,
            server_env_steps=roster.server_env_steps,
            exchanges=roster.latencies.status(),
            refused_connections=dict(roster.log.refused_connections),
        )
        registry = CollectorRegistry()
        registry.register(Collector(lambda: status))
        return {
            (sample.name, ",".join(sample.labels.values())): sample.value
            for family in registry.collect()
            if family.type in ("counter", "histogram")
            for sample in family.samples
        }

    # What can happen; `size` is a small number.

    async def restart(self, name: str, size: int) -> None:
        self.roster.journal.close()  # nothing more is written, as after kill -9
        self._start()

    async def connect(self, name: str, size: int) -> None:
        """Connect, perhaps with an older state, and perhaps while an older connection is open."""
        applied = max(0, self.roster.improvements - size)
        self.roster.admit(name, applied, is_new=size == 3, welcome=lambda n: Welcome())

    async def leave(self, name: str, size: int) -> None:
        if (session := self.roster.sessions.get(name)) is not None:
            self.roster.leave(session, "its connection broke")

    async def improve(self, name: str, size: int) -> None:
        if not (present := self.roster.present()):
            return
        cohort = RemoteCohort(self.roster, asyncio.get_running_loop(), 3)
        cohort.enlist(present)
        cohort.reserve(2, least=1)
        cohort.improve(STATES, np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.float32))
        await cohort._finish_step(2, {})

    async def learn(self, name: str, size: int) -> None:
        if (session := self.roster.sessions.get(name)) is None:
            return
        self.roster.learn([name], 3)
        member = self.roster.members[name]
        done = min(member.phase_env_steps + size, member.phase_size)
        self.roster.report(session, self._report(phase=member.phase, phase_env_steps=done))

    async def skip(self, name: str, size: int) -> None:
        if (session := self.roster.sessions.get(name)) is not None:
            skipped = min(size, self.roster.improvements)
            self.roster.report(session, self._report(skipped_improvements=skipped))

    async def answer_late(self, name: str, size: int) -> None:
        if (session := self.roster.sessions.get(name)) is not None:
            session.asked = 1_000
            report = self._report()
            report.id.epoch, report.id.number = self.roster._orders.epoch, session.asked
            self.roster.report(session, report)

    async def answer_badly(self, name: str, size: int) -> None:
        if (session := self.roster.sessions.get(name)) is not None:
            member = self.roster.members[name]
            self.roster._refuse_answer(session, member, Report(), WireError("not finite"))

    async def miss(self, name: str, size: int) -> None:
        if (session := self.roster.sessions.get(name)) is not None:
            self.roster.miss(session, list(Work)[size % len(Work)])

    async def refuse(self, name: str, size: int) -> None:
        self.roster.log.refused(name, "a test", Cause.NOT_LISTED, logged=True)

    def _report(self, **values: Any) -> Report:
        return Report(applied_improvements=self.roster.improvements, **values)


Happening = Callable[[Server, str, int], Coroutine[Any, Any, None]]
HAPPENINGS: list[Happening] = [
    Server.restart, Server.connect, Server.leave, Server.improve, Server.learn, Server.skip,
    Server.answer_late, Server.answer_badly, Server.miss, Server.refuse,
]  # fmt: skip
BAD: list[Happening] = [Server.answer_late, Server.answer_badly, Server.skip, Server.connect]
TROUBLE: list[tuple[Happening, str, int]] = [
    *((happening, "ann", size) for happening in BAD for size in (1, 2)),
    *((Server.miss, "ann", size) for size in range(3)),
]
BEGINNING: list[tuple[Happening, str, int]] = [
    (Server.connect, "ann", 0),
    (Server.connect, "bob", 0),
    (Server.improve, "ann", 0),
]


@given(
    st.lists(
        st.tuples(st.sampled_from(HAPPENINGS), st.sampled_from(NAMES), st.integers(0, 3)),
        max_size=25,
    )
)
@example([*TROUBLE, (Server.restart, "", 0), (Server.connect, "ann", 2), *TROUBLE])
@example([(Server.skip, "ann", 1), (Server.restart, "", 0)])
@example([(Server.learn, "ann", 1), (Server.restart, "", 0)])
@settings(max_examples=25, deadline=None)
def test_counters_never_go_down(
    happenings: list[tuple[Happening, str, int]],
) -> None:
    async def run(path: Path) -> None:
        server = Server(path)
        before = server.counters()
        for happening, name, size in [*BEGINNING, *happenings]:
            await happening(server, name, size)
            now = server.counters()
            assert before.keys() <= now.keys()  # no series ends
            restarted = happening is Server.restart
            fallen = {key: (before[key], now[key]) for key in before if now[key] < before[key]}
            if restarted:  # these begin again at 0, as Prometheus expects of a new process
                assert all(now[key] == 0 for key in now if key[0].startswith(SINCE_THE_START))
                fallen = {k: v for k, v in fallen.items() if not k[0].startswith(SINCE_THE_START)}
            assert fallen == {}
            before = now
        server.roster.journal.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory) / "journal.sqlite"))


def test_every_kind_of_trouble_is_counted(tmp_path: Path) -> None:
    async def run() -> Counters:
        server = Server(tmp_path / "journal.sqlite")
        before = server.counters()
        trouble = (Server.refuse, "ann", 0)
        for happening, name, size in [*BEGINNING, *TROUBLE, trouble]:
            await happening(server, name, size)
        now = server.counters()
        server.roster.journal.close()
        return {key: now[key] - before[key] for key in before if now[key] != before[key]}

    assert asyncio.run(run()) == {
        ("fedhql_improvements_total", ""): 1,
        ("fedhql_server_env_steps_total", ""): 2,
        ("fedhql_refused_connections_total", "not_listed"): 1,
        ("fedhql_member_skipped_improvements_total", "ann"): 1,
        ("fedhql_member_refused_answers_total", "ann"): 2,
        ("fedhql_member_late_answers_total", "ann"): 2,
        ("fedhql_member_unanswered_questions_total", "ann"): 1,
        ("fedhql_member_missed_phases_total", "ann"): 2,
        ("fedhql_member_reconnects_total", "ann"): 2,
        ("fedhql_member_replaced_connections_total", "ann"): 2,
    }

"""Secure queries, one message at a time: which cohort the roster asks, and when it asks again."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhql.errors import NoUsableAnswers
from fedhql.federation import Moments
from fedhql.remote.member.masking import Masking
from fedhql.remote.server.exchange import TooFew
from fedhql.remote.server.journal import Journal
from fedhql.remote.server.quorum_query import ask
from fedhql.remote.server.remote_cohort import RemoteCohort
from fedhql.remote.server.roster import Roster
from fedhql.remote.server.secure_query import ask_for_sum
from fedhql.remote.server.service_settings import ServiceSettings
from fedhql.remote.server.session import Peer, Session
from fedhql.remote.wire import key_of, pack, unpack
from fedhql.remote.wire_pb2 import FromServer, Goodbye, Order, Report, Tensor, Welcome
from tests.remote.federating import until

ACTIONS, BOUND, DEADLINE = 3, 1e3, 0.3
STATES = np.zeros((2, 4), dtype=np.float32)
NAMES = ("ann", "bob", "cyd", "dan", "eve")
Sum = tuple[Moments, list[str]]


class Member:
    """One connection of a member, driven by the test."""

    def __init__(self, roster: Roster, name: str, value: float) -> None:
        self.roster, self.name, self.values = (
            roster,
            name,
            np.full((2, ACTIONS), value, dtype=np.float32),
        )
        self.masking = Masking(name, None)
        self.masking.begin(Welcome(federation="f", secure_value_bound=BOUND))
        self.session: Session = roster.admit(
            name,
            0,
            is_new=True,
            welcome=lambda improvements: Welcome(),
            peer=Peer(masking_key=self.masking.key),
        )

    def received(self) -> list[FromServer]:
        found = []
        while not self.session.outbox.empty():
            if (content := self.session.outbox.get_nowait()) is not None:
                found.append(FromServer.FromString(content))
        return found

    def order(self) -> Order:
        """Return the only order received since the last call."""
        (order,) = [each.order for each in self.received() if each.HasField("order")]
        return order

    def reply(self, order: Order | None = None) -> Report:
        asked = order or self.order()
        return Report(id=asked.id, values=self.masking.answer(asked, self.values))

    def answer(self) -> None:
        self.send(self.reply())

    def send(self, report: Report) -> None:
        self.roster.report(self.session, report)

    def leave(self) -> None:
        self.roster.leave(self.session, "the connection ended")


class Rig:
    """A roster and its members. The values of a member are its position in NAMES, from 1."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.roster = Roster(
            ServiceSettings(**{"exchange_deadline_seconds": DEADLINE, "quorum": 3, **settings}),
            Journal(path),
            action_count=ACTIONS,
            env_steps_per_member=100,
            secure_value_bound=BOUND,
        )
        self.members = {name: self.connect(name) for name in NAMES}

    def connect(self, name: str) -> Member:
        member = Member(self.roster, name, float(NAMES.index(name) + 1))
        self.members = {**getattr(self, "members", {}), name: member}
        return member

    def of(self, *names: str) -> list[Member]:
        return [self.members[name] for name in names or NAMES]

    async def ask(self) -> "asyncio.Task[Sum]":
        query = asyncio.create_task(ask_for_sum(self.roster, NAMES, STATES, 3))
        await let_tasks_run()
        return query


async def let_tasks_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(tmp_path: Path, test: Callable[[Rig], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def with_rig() -> None:
        rig = Rig(tmp_path / "journal.sqlite", **settings)
        await test(rig)
        rig.roster.journal.close()

    asyncio.run(with_rig())


def assert_sum(found: Sum, names: Sequence[str]) -> None:
    pooled, cohort = found
    values = [NAMES.index(name) + 1 for name in names]
    assert cohort == list(names)
    assert pooled.count == len(values)
    np.testing.assert_allclose(pooled.mean_BA, np.full((2, ACTIONS), np.mean(values)))
    np.testing.assert_allclose(pooled.variance(), np.full((2, ACTIONS), np.var(values)))


def test_each_member_gets_one_question_when_no_member_drops_out(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        for number in range(1, 4):
            query = await rig.ask()
            orders = {member.name: member.order() for member in rig.of()}
            for name, order in orders.items():
                assert order.id.number == number
                assert list(order.query.cohort) == list(NAMES)
                # Keys go out with the first question only.
                assert {key.name for key in order.query.keys} == (
                    set(NAMES) if number == 1 else set()
                )
                rig.members[name].send(rig.members[name].reply(order))
            assert_sum(await query, NAMES)
            assert not any(member.received() for member in rig.of())
        assert rig.roster.latencies.status().count == 3

    run(tmp_path, test)


@pytest.mark.parametrize("leaving", permutations(NAMES, 2), ids="-".join)
def test_the_others_are_asked_again_when_members_drop_out(
    leaving: tuple[str, str], tmp_path: Path
) -> None:
    async def test(rig: Rig) -> None:
        query, left = await rig.ask(), list(NAMES)
        for name in leaving:
            for other in left:
                if other != name:
                    rig.members[other].answer()
            rig.members[name].leave()
            left.remove(name)
            await let_tasks_run()
        orders = [member.order() for member in rig.of(*left)]
        assert [list(order.query.cohort) for order in orders] == [left] * 3
        assert {key_of(order.id) for order in orders} == {(1, 3)}  # each query has a new identity
        for member, order in zip(rig.of(*left), orders, strict=True):
            member.send(member.reply(order))
        assert_sum(await query, left)

    run(tmp_path, test)


def test_a_member_that_leaves_after_its_answer_is_in_the_sum(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        query = await rig.ask()
        rig.members["bob"].answer()
        rig.members["bob"].leave()
        for member in rig.of("ann", "cyd", "dan", "eve"):
            member.answer()
        assert_sum(await query, NAMES)

    run(tmp_path, test)


def test_a_query_waits_while_fewer_than_three_members_are_connected(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        query = await rig.ask()
        for name in ("cyd", "dan", "eve"):
            rig.members[name].leave()
        for name in ("ann", "bob"):
            rig.members[name].answer()
        await asyncio.sleep(2 * DEADLINE)
        assert not any(member.received() for member in rig.of("ann", "bob"))
        rig.connect("eve")  # with a new key
        await let_tasks_run()
        for member in rig.of("ann", "bob", "eve"):
            order = member.order()
            new = {"eve"} if member.name != "eve" else {"ann", "bob", "eve"}
            assert {key.name for key in order.query.keys} == new
            member.send(member.reply(order))
        assert_sum(await query, ("ann", "bob", "eve"))

    run(tmp_path, test)


def test_a_late_member_is_disconnected_before_the_others_are_asked_again(
    tmp_path: Path,
) -> None:
    """A late answer would complete the first sum. The difference of both sums is its own values."""

    async def test(rig: Rig) -> None:
        late = rig.members["cyd"]
        query = await rig.ask()
        others = rig.of("ann", "bob", "dan", "eve")
        for member in others:
            member.answer()
        late_reply = late.reply()
        await asyncio.sleep(1.5 * DEADLINE)
        (goodbye,) = late.received()
        assert goodbye.goodbye.reason == Goodbye.STOPPED  # it may reconnect
        assert rig.roster.sessions.get("cyd") is None
        late.send(late_reply)
        assert rig.roster._exchange is not None
        assert not rig.roster._exchange.answers
        for member in others:
            member.answer()
        assert_sum(await query, ("ann", "bob", "dan", "eve"))
        assert rig.roster.members["cyd"].late_answers == 1

    run(tmp_path, test)


def test_a_late_member_is_left_out_for_a_while(tmp_path: Path) -> None:
    """Otherwise a slow member would cost one deadline in every query."""
    others = ("ann", "bob", "dan", "eve")

    async def test(rig: Rig) -> None:
        cohort = RemoteCohort(rig.roster, asyncio.get_running_loop(), ACTIONS)

        async def ask() -> "asyncio.Future[Any]":
            query = asyncio.ensure_future(asyncio.to_thread(cohort.query, STATES))
            await until(lambda: rig.roster._exchange is not None, query)
            return query

        async def answer_and_list(query: "asyncio.Future[Any]", *names: str) -> tuple[int, ...]:
            for member in rig.of(*names):
                member.answer()
            return (await query).members

        cohort.enlist(NAMES)
        query = await ask()
        for member in rig.of(*others):
            member.answer()
        await asyncio.sleep(1.5 * DEADLINE)
        cyd = rig.connect("cyd")
        assert await answer_and_list(query, *others) == (0, 1, 3, 4)
        assert await answer_and_list(await ask(), *others) == (0, 1, 3, 4)
        assert not any(each.HasField("order") for each in cyd.received())
        cohort.enlist(NAMES)
        assert await answer_and_list(await ask(), *others) == (0, 1, 3, 4)
        await asyncio.sleep(2 * DEADLINE)
        assert await answer_and_list(await ask()) == (0, 1, 2, 3, 4)

    run(tmp_path, test)


def test_a_late_member_is_asked_again_if_the_quorum_needs_it(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        for name in ("dan", "eve"):
            rig.members[name].leave()
        query = await rig.ask()
        for member in rig.of("ann", "bob"):
            member.answer()
        await asyncio.sleep(1.5 * DEADLINE)
        rig.connect("cyd")
        await let_tasks_run()
        for member in rig.of("ann", "bob", "cyd"):
            member.answer()
        assert_sum(await query, ("ann", "bob", "cyd"))

    run(tmp_path, test)


def test_a_member_that_reconnects_takes_part_in_the_next_query(tmp_path: Path) -> None:
    """Its new key is in no mask of the open exchange, and it cannot delay a query twice."""

    async def test(rig: Rig) -> None:
        query, others = await rig.ask(), ("ann", "bob", "cyd", "eve")
        rig.members["dan"].leave()
        dan = rig.connect("dan")
        for _ in range(2):
            for member in rig.of(*others):
                member.answer()
            await let_tasks_run()
        assert not [each for each in dan.received() if each.HasField("order")]
        assert_sum(await query, others)
        query = await rig.ask()
        for member in rig.of():
            member.answer()
        assert_sum(await query, NAMES)

    run(tmp_path, test)


def test_a_member_with_unusable_values_is_left_out_and_then_quarantined(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.members["bob"].values[0, 0] = np.nan
        others = ("ann", "cyd", "dan", "eve")
        for in_a_row in (1, 2, 3):
            query = await rig.ask()
            for member in rig.of():
                member.answer()
            await let_tasks_run()
            for member in rig.of(*others):
                member.answer()
            assert_sum(await query, others)
            assert rig.roster.members["bob"].refused_in_a_row == in_a_row
        assert rig.roster.members["bob"].quarantined

    run(tmp_path, test)


def test_an_unusable_member_is_asked_until_quarantine_if_the_quorum_needs_it(
    tmp_path: Path,
) -> None:
    async def test(rig: Rig) -> None:
        rig.members["bob"].values[0, 0] = BOUND + 1
        for name in ("dan", "eve"):
            rig.members[name].leave()
        query = await rig.ask()
        for _ in range(3):
            for member in rig.of("ann", "bob", "cyd"):
                member.answer()
            await let_tasks_run()
        assert rig.roster.members["bob"].quarantined
        assert not rig.members["ann"].received()
        rig.connect("dan")
        await let_tasks_run()
        for member in rig.of("ann", "cyd", "dan"):
            member.answer()
        assert_sum(await query, ("ann", "cyd", "dan"))

    run(tmp_path, test)


def altered(report: Report) -> Report:
    words = unpack(report.values)
    words[4] ^= np.uint64(1)
    report.values.CopyFrom(pack(words))
    return report


def test_an_altered_answer_is_detected(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        query = await rig.ask()
        for member in rig.of("ann", "bob", "cyd", "dan"):
            member.answer()
        rig.members["eve"].send(altered(rig.members["eve"].reply()))
        await let_tasks_run()
        for member in rig.of():
            member.answer()
        assert_sum(await query, NAMES)
        query = await rig.ask()
        for _ in range(3):
            for member in rig.of():
                report = member.reply()
                member.send(altered(report) if member.name == "eve" else report)
            await let_tasks_run()
        with pytest.raises(
            NoUsableAnswers, match=r"do not add up, 3 times in one query; at least one of ann, b"
        ):
            await query

    run(tmp_path, test)


def test_a_dropout_does_not_reset_the_count_of_wrong_sums(tmp_path: Path) -> None:
    """Otherwise an attacker could reset the count by reconnecting."""

    async def answer_altered(rig: Rig, *names: str) -> None:
        for member in rig.of(*names):
            report = member.reply()
            member.send(altered(report) if member.name == "ann" else report)
        await let_tasks_run()

    async def test(rig: Rig) -> None:
        query = await rig.ask()
        for _ in range(2):
            await answer_altered(rig, *NAMES)
        for member in rig.of(*NAMES[:-1]):
            member.answer()
        rig.members["eve"].leave()
        await let_tasks_run()
        await answer_altered(rig, *NAMES[:-1])
        with pytest.raises(NoUsableAnswers, match="do not add up, 3 times in one query"):
            await query

    run(tmp_path, test)


def test_no_question_goes_out_without_masks(tmp_path: Path) -> None:
    """An exchange without keys would be a plain one."""

    async def test(rig: Rig) -> None:
        with pytest.raises(AssertionError):
            await asyncio.wait_for(ask(rig.roster, dict.fromkeys(NAMES, STATES), 0), DEADLINE / 2)
        for members in (rig.of("ann"), rig.of()):
            for member in members:
                member.session.peer = Peer()
            with pytest.raises(AssertionError):
                await asyncio.wait_for(ask_for_sum(rig.roster, NAMES, STATES, 3), DEADLINE / 2)
        assert not any(each.HasField("order") for m in rig.of() for each in m.received())

    run(tmp_path, test)


def test_a_replayed_answer_is_not_counted(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        query, ann = await rig.ask(), rig.members["ann"]
        old = ann.reply()
        ann.send(old)
        for member in rig.of(*NAMES[1:]):
            member.answer()
        await query
        query = await rig.ask()
        ann.send(old)  # unchanged: it answers no open question
        new = ann.order()
        ann.send(Report(id=new.id, values=old.values))  # new identity, old masks: a wrong sum
        for member in rig.of(*NAMES[1:]):
            member.answer()
        await let_tasks_run()
        for member in rig.of():
            member.answer()
        assert_sum(await query, NAMES)
        events = [event.text for event in rig.roster.log.events]
        assert "the masked answers of the cohort do not add up; asking again" in events

    run(tmp_path, test)


@pytest.mark.parametrize(
    "wrong",
    [Tensor(), pack(np.ones((2, ACTIONS), dtype=np.float32)), pack(np.ones(12, dtype=np.uint64))],
    ids=["nothing", "values", "a word too few"],
)
def test_an_answer_of_the_wrong_shape_or_dtype_is_refused(wrong: Tensor, tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        query, ann = await rig.ask(), rig.members["ann"]
        ann.send(Report(id=ann.order().id, values=wrong))
        for _ in range(2):
            for member in rig.of(*NAMES[1:]):
                member.answer()
            await let_tasks_run()
        assert_sum(await query, NAMES[1:])
        assert rig.roster.members["ann"].refused_answers == 1

    run(tmp_path, test)


def test_a_secure_query_gives_up_when_other_members_are_connected(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        query = asyncio.create_task(ask_for_sum(rig.roster, ("ann", "bob", "fay"), STATES, 3))
        with pytest.raises(TooFew):
            await asyncio.wait_for(query, 5)

    run(tmp_path, test)

"""Secure aggregation message by message: whom the roster asks, when again, and with whom."""

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
from fedhql.remote.server.session import Session
from fedhql.remote.wire import key_of, pack, unpack
from fedhql.remote.wire_pb2 import FromServer, Goodbye, Order, Report, Tensor, Welcome
from tests.remote.federating import until

ACTIONS, BOUND, DEADLINE = 3, 1e3, 0.3
STATES = np.zeros((2, 4), dtype=np.float32)
NAMES = ("ann", "bob", "cyd", "dan", "eve")
Sum = tuple[Moments, list[str]]


class Member:
    """One connection of a member, told what to do by a test."""

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
            masking_key=self.masking.key,
        )

    def heard(self) -> list[FromServer]:
        found = []
        while not self.session.outbox.empty():
            if (content := self.session.outbox.get_nowait()) is not None:
                found.append(FromServer.FromString(content))
        return found

    def order(self) -> Order:
        """The one question it was asked since the last look."""
        (order,) = [each.order for each in self.heard() if each.HasField("order")]
        return order

    def reply(self, order: Order | None = None) -> Report:
        asked = order or self.order()
        return Report(id=asked.id, values=self.masking.answer(asked, self.values))

    def answer(self) -> None:
        self.say(self.reply())

    def say(self, report: Report) -> None:
        self.roster.report(self.session, report)

    def leave(self) -> None:
        self.roster.leave(self.session, "the connection ended")


class Rig:
    """A roster and its members; each one's values are its place, from 1."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.roster = Roster(
            ServiceSettings(**{"exchange_deadline_seconds": DEADLINE, "quorum": 3, **settings}),
            Journal(path),
            action_count=ACTIONS,
            env_steps_per_member=100,
            secure_value_bound=BOUND,
        )
        self.members = {name: self.come(name) for name in NAMES}

    def come(self, name: str) -> Member:
        member = Member(self.roster, name, float(NAMES.index(name) + 1))
        self.members = {**getattr(self, "members", {}), name: member}
        return member

    def of(self, *names: str) -> list[Member]:
        return [self.members[name] for name in names or NAMES]

    async def ask(self) -> "asyncio.Task[Sum]":
        asking = asyncio.create_task(ask_for_sum(self.roster, NAMES, STATES, 3, set()))
        await settled()
        return asking


async def settled() -> None:
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


def test_one_question_and_one_answer_each_while_nobody_drops_out(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        for number in range(1, 4):
            asking = await rig.ask()
            orders = {member.name: member.order() for member in rig.of()}
            for name, order in orders.items():
                assert order.id.number == number
                assert list(order.query.cohort) == list(NAMES)
                # Keys go out with the first question, and not again.
                assert {key.name for key in order.query.keys} == (
                    set(NAMES) if number == 1 else set()
                )
                rig.members[name].say(rig.members[name].reply(order))
            assert_sum(await asking, NAMES)
            assert not any(member.heard() for member in rig.of())
        assert rig.roster.latencies.status().count == 3

    run(tmp_path, test)


@pytest.mark.parametrize("leaving", permutations(NAMES, 2), ids="-".join)
def test_whoever_drops_out_the_others_are_asked_again(
    leaving: tuple[str, str], tmp_path: Path
) -> None:
    async def test(rig: Rig) -> None:
        asking, left = await rig.ask(), list(NAMES)
        for name in leaving:
            for other in left:
                if other != name:
                    rig.members[other].answer()
            rig.members[name].leave()
            left.remove(name)
            await settled()
        orders = [member.order() for member in rig.of(*left)]
        assert [list(order.query.cohort) for order in orders] == [left] * 3
        assert {key_of(order.id) for order in orders} == {(1, 3)}  # a new identity each time
        for member, order in zip(rig.of(*left), orders, strict=True):
            member.say(member.reply(order))
        assert_sum(await asking, left)

    run(tmp_path, test)


def test_who_leaves_when_its_answer_is_in_is_in_the_sum(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        asking = await rig.ask()
        rig.members["bob"].answer()
        rig.members["bob"].leave()
        for member in rig.of("ann", "cyd", "dan", "eve"):
            member.answer()
        assert_sum(await asking, NAMES)

    run(tmp_path, test)


def test_never_below_three(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        asking = await rig.ask()
        for name in ("cyd", "dan", "eve"):
            rig.members[name].leave()
        for name in ("ann", "bob"):
            rig.members[name].answer()
        await asyncio.sleep(2 * DEADLINE)
        assert not any(member.heard() for member in rig.of("ann", "bob"))
        rig.come("eve")  # with a new key
        await settled()
        for member in rig.of("ann", "bob", "eve"):
            order = member.order()
            new = {"eve"} if member.name != "eve" else {"ann", "bob", "eve"}
            assert {key.name for key in order.query.keys} == new
            member.say(member.reply(order))
        assert_sum(await asking, ("ann", "bob", "eve"))

    run(tmp_path, test)


def test_who_is_late_is_sent_away_before_others_are_asked_and_not_heard_any_more(
    tmp_path: Path,
) -> None:
    """Its answer would complete the first sum, and the difference of both is its own values."""

    async def test(rig: Rig) -> None:
        late = rig.members["cyd"]
        asking = await rig.ask()
        others = rig.of("ann", "bob", "dan", "eve")
        for member in others:
            member.answer()
        of_late = late.reply()
        await asyncio.sleep(1.5 * DEADLINE)
        (goodbye,) = late.heard()
        assert goodbye.goodbye.reason == Goodbye.STOPPED  # it may come again
        assert rig.roster.sessions.get("cyd") is None
        late.say(of_late)
        assert rig.roster._exchange is not None
        assert not rig.roster._exchange.answers
        for member in others:
            member.answer()
        assert_sum(await asking, ("ann", "bob", "dan", "eve"))
        assert rig.roster.members["cyd"].late_answers == 1

    run(tmp_path, test)


def test_who_was_late_is_left_out_until_the_next_round(tmp_path: Path) -> None:
    """Or one that needs longer than the deadline costs a deadline each time."""
    others = ("ann", "bob", "dan", "eve")

    async def test(rig: Rig) -> None:
        cohort = RemoteCohort(rig.roster, asyncio.get_running_loop(), ACTIONS)

        async def ask() -> "asyncio.Future[Any]":
            asking = asyncio.ensure_future(asyncio.to_thread(cohort.query, STATES))
            await until(lambda: rig.roster._exchange is not None, asking)
            return asking

        async def who_is_in(asking: "asyncio.Future[Any]", *names: str) -> tuple[int, ...]:
            for member in rig.of(*names):
                member.answer()
            members: tuple[int, ...] = (await asking).members
            return members

        cohort.enlist(NAMES)
        asking = await ask()
        for member in rig.of(*others):
            member.answer()
        await asyncio.sleep(1.5 * DEADLINE)
        cyd = rig.come("cyd")
        assert await who_is_in(asking, *others) == (0, 1, 3, 4)
        assert await who_is_in(await ask(), *others) == (0, 1, 3, 4)
        assert not any(each.HasField("order") for each in cyd.heard())
        cohort.enlist(NAMES)
        assert await who_is_in(await ask()) == (0, 1, 2, 3, 4)

    run(tmp_path, test)


def test_if_that_leaves_too_few_it_is_asked_again(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        for name in ("dan", "eve"):
            rig.members[name].leave()
        asking = await rig.ask()
        for member in rig.of("ann", "bob"):
            member.answer()
        await asyncio.sleep(1.5 * DEADLINE)
        rig.come("cyd")
        await settled()
        for member in rig.of("ann", "bob", "cyd"):
            member.answer()
        assert_sum(await asking, ("ann", "bob", "cyd"))

    run(tmp_path, test)


def test_who_comes_back_in_the_middle_takes_part_in_the_next(tmp_path: Path) -> None:
    """Its new key belongs to no mask of the open exchange; nor can it hold up a question twice."""

    async def test(rig: Rig) -> None:
        asking, others = await rig.ask(), ("ann", "bob", "cyd", "eve")
        rig.members["dan"].leave()
        dan = rig.come("dan")
        for _ in range(2):
            for member in rig.of(*others):
                member.answer()
            await settled()
        assert not [each for each in dan.heard() if each.HasField("order")]
        assert_sum(await asking, others)
        asking = await rig.ask()
        for member in rig.of():
            member.answer()
        assert_sum(await asking, NAMES)

    run(tmp_path, test)


def test_who_has_nothing_to_answer_is_left_out_and_in_the_end_quarantined(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.members["bob"].values[0, 0] = np.nan
        others = ("ann", "cyd", "dan", "eve")
        for in_a_row in (1, 2, 3):
            asking = await rig.ask()
            for member in rig.of():
                member.answer()
            await settled()
            for member in rig.of(*others):
                member.answer()
            assert_sum(await asking, others)
            assert rig.roster.members["bob"].refused_in_a_row == in_a_row
        assert rig.roster.members["bob"].quarantined

    run(tmp_path, test)


def test_if_that_leaves_too_few_it_is_asked_until_it_is_quarantined(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.members["bob"].values[0, 0] = BOUND + 1
        for name in ("dan", "eve"):
            rig.members[name].leave()
        asking = await rig.ask()
        for _ in range(3):
            for member in rig.of("ann", "bob", "cyd"):
                member.answer()
            await settled()
        assert rig.roster.members["bob"].quarantined
        assert not rig.members["ann"].heard()
        rig.come("dan")
        await settled()
        for member in rig.of("ann", "cyd", "dan"):
            member.answer()
        assert_sum(await asking, ("ann", "cyd", "dan"))

    run(tmp_path, test)


def altered(report: Report) -> Report:
    words = unpack(report.values)
    words[4] ^= np.uint64(1)
    report.values.CopyFrom(pack(words))
    return report


def test_an_altered_answer_spoils_the_sum_which_is_noticed(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        asking = await rig.ask()
        for member in rig.of("ann", "bob", "cyd", "dan"):
            member.answer()
        rig.members["eve"].say(altered(rig.members["eve"].reply()))
        await settled()
        for member in rig.of():
            member.answer()
        assert_sum(await asking, NAMES)
        asking = await rig.ask()
        for _ in range(3):
            for member in rig.of():
                report = member.reply()
                member.say(altered(report) if member.name == "eve" else report)
            await settled()
        with pytest.raises(
            NoUsableAnswers, match=r"do not add up, 3 times in a row: one of ann, b"
        ):
            await asking

    run(tmp_path, test)


def test_who_drops_out_between_spoilt_sums_does_not_make_them_fewer(tmp_path: Path) -> None:
    """Or who spoils them would only have to leave and come again now and then."""

    async def spoil(rig: Rig, *names: str) -> None:
        for member in rig.of(*names):
            report = member.reply()
            member.say(altered(report) if member.name == "ann" else report)
        await settled()

    async def test(rig: Rig) -> None:
        asking = await rig.ask()
        for _ in range(2):
            await spoil(rig, *NAMES)
        for member in rig.of(*NAMES[:-1]):
            member.answer()
        rig.members["eve"].leave()
        await settled()
        await spoil(rig, *NAMES[:-1])
        with pytest.raises(NoUsableAnswers, match="do not add up, 3 times in a row"):
            await asking

    run(tmp_path, test)


def test_nobody_is_asked_without_masks(tmp_path: Path) -> None:
    """An exchange with no keys would be a plain one."""

    async def test(rig: Rig) -> None:
        with pytest.raises(AssertionError):
            await asyncio.wait_for(ask(rig.roster, dict.fromkeys(NAMES, STATES), 0), DEADLINE / 2)
        for members in (rig.of("ann"), rig.of()):
            for member in members:
                member.session.masking_key = None
            with pytest.raises(AssertionError):
                await asyncio.wait_for(
                    ask_for_sum(rig.roster, NAMES, STATES, 3, set()), DEADLINE / 2
                )
        assert not any(each.HasField("order") for m in rig.of() for each in m.heard())

    run(tmp_path, test)


def test_a_replayed_answer_is_not_taken(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        asking, ann = await rig.ask(), rig.members["ann"]
        old = ann.reply()
        ann.say(old)
        for member in rig.of(*NAMES[1:]):
            member.answer()
        await asking
        asking = await rig.ask()
        ann.say(old)  # as it was: it is late
        assert rig.roster.members["ann"].late_answers == 1
        new = ann.order()
        ann.say(Report(id=new.id, values=old.values))  # under the new identity: it does not fit
        for member in rig.of(*NAMES[1:]):
            member.answer()
        await settled()
        for member in rig.of():
            member.answer()
        assert_sum(await asking, NAMES)
        events = [event.text for event in rig.roster.events]
        assert "the masked answers of the cohort do not add up: asked again" in events

    run(tmp_path, test)


@pytest.mark.parametrize(
    "wrong",
    [Tensor(), pack(np.ones((2, ACTIONS), dtype=np.float32)), pack(np.ones(12, dtype=np.uint64))],
    ids=["nothing", "values", "a word too few"],
)
def test_an_answer_of_another_form_is_refused(wrong: Tensor, tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        asking, ann = await rig.ask(), rig.members["ann"]
        ann.say(Report(id=ann.order().id, values=wrong))
        for _ in range(2):
            for member in rig.of(*NAMES[1:]):
                member.answer()
            await settled()
        assert_sum(await asking, NAMES[1:])
        assert rig.roster.members["ann"].refused_answers == 1

    run(tmp_path, test)


def test_others_are_a_reason_to_give_up_a_round(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        asking = asyncio.create_task(
            ask_for_sum(rig.roster, ("ann", "bob", "fay"), STATES, 3, set())
        )
        with pytest.raises(TooFew):
            await asyncio.wait_for(asking, 5)

    run(tmp_path, test)

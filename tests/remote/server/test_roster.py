"""The roster on its own, one message at a time."""

import asyncio
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhql.remote.server.condition import Stopped
from fedhql.remote.server.exchange import TooFew
from fedhql.remote.server.journal import Journal
from fedhql.remote.server.quorum_query import ask
from fedhql.remote.server.remote_cohort import RemoteCohort
from fedhql.remote.server.roster import Roster
from fedhql.remote.server.service_settings import ServiceSettings
from fedhql.remote.server.session import Peer, Session
from fedhql.remote.wire import WireError, pack
from fedhql.remote.wire_pb2 import FromServer, Goodbye, Order, OrderId, Report, Tensor, Welcome

ACTIONS, BUDGET = 3, 100
STATES = np.zeros((2, 4), dtype=np.float32)
GOOD = np.ones((2, ACTIONS), dtype=np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


class Rig:
    """A roster whose sessions are driven by the test."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.roster = Roster(
            ServiceSettings(**{"exchange_deadline_seconds": 0.1, **settings}),
            Journal(path),
            action_count=ACTIONS,
            env_steps_per_member=BUDGET,
        )

    def connect(self, name: str, applied: int | None = None) -> Session:
        return self.roster.admit(
            name,
            applied or 0,
            is_new=applied is None,
            welcome=lambda improvements: Welcome(improvements=improvements),
        )

    async def improve(self, *names: str, server_env_steps: int = 2) -> None:
        """Finish one step of the server and charge the named members."""
        cohort = RemoteCohort(self.roster, asyncio.get_running_loop(), ACTIONS)
        cohort.enlist(names)
        cohort.reserve(server_env_steps, least=1)
        cohort.improve(STATES, np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.float32))
        await cohort._finish_step(server_env_steps, {})

    def ask(self, *names: str, quorum: int = 1) -> "asyncio.Task[dict[str, Any]]":
        async def answers() -> dict[str, Any]:
            return (await ask(self.roster, dict.fromkeys(names, STATES), quorum)).answers

        return asyncio.create_task(answers())


def run(path: Path, test: Any, **settings: Any) -> None:
    async def with_rig() -> None:
        rig = Rig(path, **settings)
        await test(rig)
        rig.roster.journal.close()

    asyncio.run(with_rig())


def orders(session: Session) -> Iterator[Order]:
    """Yield the orders that the session was sent since the last call."""
    while not session.outbox.empty():
        if (content := session.outbox.get_nowait()) is None:
            return
        message = FromServer.FromString(content)
        if message.HasField("order"):
            yield message.order


def answer(session: Session, values: Any = GOOD) -> Report:
    *_, order = orders(session)
    tensor = values if isinstance(values, Tensor) else pack(np.asarray(values))
    return Report(id=order.id, values=tensor)


def test_every_step_is_charged_once(path: Path) -> None:
    async def test(rig: Rig) -> None:
        session, records = rig.connect("ann"), rig.roster.members
        rig.roster.learn(["ann"], 30)
        (order,) = orders(session)
        assert (order.learn.phase, order.learn.env_steps) == (1, 30)
        for phase, done, charged in (
            (1, 10, 10),
            (1, 10, 10),
            (1, 5, 10),
            (0, 30, 10),
            (1, 30, 30),
        ):
            rig.roster.report(session, Report(phase=phase, phase_env_steps=done))
            assert records["ann"].own_env_steps == charged
        for phase, done, why in (
            (1, 2**64 - 1, "a report of 18446744073709551615 env steps in phase 1; ordered: 30"),
            (2, 30, "a report of phase 2; ordered: 1"),
        ):
            with pytest.raises(WireError, match=why):
                rig.roster.report(session, Report(phase=phase, phase_env_steps=done))
            assert records["ann"].own_env_steps == 30
        rig.roster.learn(["ann"], 1_000)  # no more than is left
        (order,) = orders(session)
        assert (order.learn.phase, order.learn.env_steps) == (2, BUDGET - 30)

    run(path, test)


def test_reserved_steps_are_not_spent_on_self_learning(path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.connect("ann")
        rig.connect("bob")
        rig.roster.reserved = {"ann": Fraction(21, 2)}
        assert (rig.roster.learnable("ann"), rig.roster.learnable("bob")) == (BUDGET - 11, BUDGET)
        rig.roster.end_round()
        assert rig.roster.learnable("ann") == BUDGET

    run(path, test)


def test_a_member_that_cannot_pay_for_a_step_leaves_the_round(path: Path) -> None:
    async def test(rig: Rig) -> None:
        for name in ("ann", "bob", "cyd", "dan"):
            rig.connect(name)
        cohort = RemoteCohort(rig.roster, asyncio.get_running_loop(), ACTIONS)
        rig.roster.learn(["dan"], BUDGET)  # this spends all of its budget
        rig.roster.learn(["cyd"], BUDGET - 5)
        cohort.enlist(("ann", "bob", "cyd", "dan"))
        assert cohort.reserve(400, least=15) == 15  # with dan out, cyd can pay its third
        assert list(cohort.names) == ["ann", "bob", "cyd"]
        assert cohort.reserve(400, least=16) == 2 * BUDGET
        assert list(cohort.names) == ["ann", "bob"]
        assert rig.roster.reserved == {"ann": BUDGET, "bob": BUDGET}
        assert cohort.reserve(400, least=2 * BUDGET + 1) == 0
        assert not cohort.names

    run(path, test)


def test_member_numbers_stay_unique_when_the_list_of_members_changes(path: Path) -> None:
    async def first(rig: Rig) -> None:
        rig.connect("bob")
        assert rig.roster.members["bob"].number == 1

    async def then(rig: Rig) -> None:
        rig.connect("ann")
        rig.connect("cyd")
        assert [rig.roster.members[name].number for name in ("bob", "ann", "cyd")] == [1, 2, 0]

    run(path, first, members=("ann", "bob", "cyd"))
    run(path, then, members=("cyd", "ann", "bob"))


def test_an_unreported_phase_is_ordered_again(path: Path) -> None:
    async def begin(rig: Rig) -> None:
        rig.connect("ann")
        rig.roster.learn(["ann"], 30)

    async def go_on(rig: Rig) -> None:
        session = rig.connect("ann", applied=0)
        (order,) = orders(session)
        assert (order.id.epoch, order.learn.phase, order.learn.env_steps) == (2, 1, 30)
        rig.roster.report(session, Report(phase=1, phase_env_steps=30))
        assert not list(orders(rig.connect("ann", applied=0)))

    async def done(rig: Rig) -> None:
        assert rig.roster.members["ann"].own_env_steps == 30
        assert not list(orders(rig.connect("ann", applied=0)))

    for part in (begin, go_on, done):  # each with a new roster
        run(path, part)


UNUSABLE = {
    "another shape": np.ones((3, ACTIONS), dtype=np.float32),
    "another dtype": np.ones((2, ACTIONS), dtype=np.float64),
    "too few bytes": Tensor(dtype="float32", shape=[2, ACTIONS], data=b"1234"),
    "nothing": Tensor(),
    "NaN": np.array([[0, np.nan, 0]] * 2, dtype=np.float32),
    "infinity": np.array([[0, -np.inf, 0]] * 2, dtype=np.float32),
    "too large": np.array([[0, 1.1e6, 0]] * 2, dtype=np.float32),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_three_unusable_answers_in_a_row_lead_to_quarantine(kind: str, path: Path) -> None:
    async def test(rig: Rig) -> None:
        bad, good = rig.connect("bad"), rig.connect("good")
        record = rig.roster.members["bad"]
        for values, in_a_row in ((kind, 1), (kind, 2), ("", 0), (kind, 1), (kind, 2), (kind, 3)):
            query = rig.ask("bad", "good")
            await asyncio.sleep(0)
            rig.roster.report(bad, answer(bad, UNUSABLE[kind] if values else GOOD))
            rig.roster.report(good, answer(good))
            assert set(await query) == ({"good"} if values else {"bad", "good"})
            assert record.refused_in_a_row == in_a_row
        assert record.refused_answers == 5
        assert record.quarantined
        assert rig.roster.present() == ["good"]
        assert (await asyncio.gather(rig.ask("good"), reporting(rig, good)))[0].keys() == {"good"}

    async def after_a_restart(rig: Rig) -> None:
        assert rig.roster.members["bad"].quarantined
        assert rig.roster.members["bad"].refused_answers == 5
        rig.roster.release("bad")
        rig.connect("bad", applied=0)
        assert rig.roster.present() == ["bad"]

    run(path, test)
    run(path, after_a_restart)


@pytest.mark.parametrize("act", [True, False])
def test_a_member_says_how_it_acts_only_if_it_is_asked(act: bool, path: Path) -> None:
    """A member of an older version does not know the question and sends values only."""

    async def test(rig: Rig) -> None:
        acting, older = rig.connect("acting"), rig.connect("older")
        query = asyncio.create_task(
            ask(rig.roster, dict.fromkeys(("acting", "older"), STATES), act=act)
        )
        await asyncio.sleep(0)
        report = answer(acting)
        report.actions.CopyFrom(pack(np.array([2, 0])))
        rig.roster.report(acting, report)
        rig.roster.report(older, answer(older))
        exchange = await query
        assert exchange.answers.keys() == {"acting", "older"}
        said = {name: actions.tolist() for name, actions in exchange.actions.items()}
        assert said == ({"acting": [2, 0]} if act else {})

    run(path, test)


@pytest.mark.parametrize(
    "actions", [np.array([0, ACTIONS]), np.array([-1, 0]), np.zeros(3, dtype=int), np.zeros(2)]
)
def test_actions_that_are_not_allowed_are_refused(actions: Any, path: Path) -> None:
    async def test(rig: Rig) -> None:
        bad = rig.connect("bad")
        query = asyncio.create_task(ask(rig.roster, {"bad": STATES}, 0, act=True))
        await asyncio.sleep(0)
        (order,) = orders(bad)
        assert order.query.act
        report = Report(id=order.id, values=pack(np.asarray(GOOD)), actions=pack(actions))
        rig.roster.report(bad, report)
        exchange = await query
        assert (exchange.answers, exchange.actions) == ({}, {})
        assert rig.roster.members["bad"].refused_answers == 1

    run(path, test)


async def reporting(rig: Rig, session: Session) -> None:
    await asyncio.sleep(0)
    rig.roster.report(session, answer(session))


def test_a_late_answer_is_dropped_and_a_member_has_one_question_at_a_time(path: Path) -> None:
    async def test(rig: Rig) -> None:
        slow, quick = rig.connect("slow"), rig.connect("quick")
        first = rig.ask("slow", "quick")
        await asyncio.sleep(0)
        rig.roster.report(quick, answer(quick))
        late = answer(slow)
        assert set(await first) == {"quick"}  # at the deadline
        second = rig.ask("slow", "quick", quorum=2)  # the quorum needs it, though it was late
        await asyncio.sleep(0)
        assert not list(orders(slow))  # its first question is still open
        rig.roster.report(slow, late)
        await asyncio.sleep(0.01)
        (again,) = orders(slow)
        rig.roster.report(quick, answer(quick, 2 * GOOD))
        rig.roster.report(slow, Report(id=again.id, values=pack(3 * GOOD)))
        rig.roster.report(slow, Report(id=again.id, values=pack(4 * GOOD)))  # a repeat: ignored
        values = await second
        assert values["slow"][0, 0] == 3
        rig.roster.report(slow, Report(id=again.id, values=pack(GOOD)))  # no question is open
        assert rig.roster.members["slow"].late_answers == 1
        assert rig.roster.members["slow"].unanswered_questions == 1
        assert rig.roster.members["quick"].late_answers == 0

    run(path, test)


def test_a_query_waits_for_a_quorum_and_asks_a_reconnected_member_again(path: Path) -> None:
    async def test(rig: Rig) -> None:
        ann = rig.connect("ann")
        query = rig.ask("ann", "bob", quorum=2)
        await asyncio.sleep(0.15)
        assert not list(orders(ann))  # no question goes out while bob is absent
        bob = rig.connect("bob")
        await asyncio.sleep(0.01)
        rig.roster.report(ann, answer(ann))
        rig.roster.leave(bob, "the connection ended")
        bob = rig.connect("bob", applied=0)  # it gets the open question again
        rig.roster.report(bob, answer(bob))
        assert set(await query) == {"ann", "bob"}

    run(path, test)


def test_a_query_gives_up_when_other_members_are_connected(path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.connect("ann")
        query = rig.ask("ann", "bob", quorum=2)
        await asyncio.sleep(0)
        rig.connect("cyd")
        with pytest.raises(TooFew):
            await query
        ann, _ = rig.connect("ann", applied=0), rig.connect("bob")  # bob never answers
        query = rig.ask("ann", "bob", quorum=2)
        await asyncio.sleep(0)
        rig.roster.report(ann, answer(ann))
        with pytest.raises(TooFew):
            await query

    run(path, test)


def test_a_stop_interrupts_every_wait(path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.connect("ann")
        query = rig.ask("ann", quorum=0)  # as evaluation does
        await asyncio.sleep(0)
        rig.roster.stop()
        with pytest.raises(Stopped):
            await query
        with pytest.raises(Stopped):
            await rig.roster.wait_until(lambda: True)

    run(path, test)


def test_orders_bring_missing_improvements_and_name_skipped_ones(path: Path) -> None:
    async def test(rig: Rig) -> None:
        ann = rig.connect("ann")
        for _ in range(5):
            await rig.improve("ann")
        rig.roster.learn(["ann"], 10)
        (order,) = orders(ann)
        assert [i.number for i in order.improvements] == [3, 4, 5]
        assert order.skip_through == 2
        rig.roster.report(ann, Report(phase=1, phase_env_steps=10, applied_improvements=5,
                                   skipped_improvements=2))  # fmt: skip
        rig.roster.learn(["ann"], 10)
        (order,) = orders(ann)
        assert (list(order.improvements), order.skip_through) == ([], 0)
        bob = rig.connect("bob")  # a late member gets no earlier improvements
        assert rig.roster.members["bob"].joined_at == 5
        await rig.improve("ann", "bob")
        rig.roster.learn(["bob"], 10)
        (order,) = orders(bob)
        assert ([i.number for i in order.improvements], order.skip_through) == ([6], 0)

    async def after_a_restart(rig: Rig) -> None:
        assert rig.roster.server_env_steps == 12
        shares = [Fraction(member.share) for member in rig.roster.members.values()]
        assert shares == [Fraction(11), Fraction(1)]
        (order,) = orders(rig.connect("ann", applied=1))
        assert [i.number for i in order.improvements] == [4, 5, 6]
        assert order.skip_through == 3
        (order,) = orders(rig.connect("bob"))  # it lost its state and restarts from joined_at
        assert [i.number for i in order.improvements] == [6]

    run(path, test, catch_up_improvements=3)
    run(path, after_a_restart, catch_up_improvements=3)


def test_reports_of_a_replaced_session_are_ignored(path: Path) -> None:
    async def test(rig: Rig) -> None:
        older = rig.connect("ann")
        rig.roster.learn(["ann"], 30)
        newer = rig.connect("ann", applied=0)
        rig.roster.report(older, Report(phase=1, phase_env_steps=30))
        assert rig.roster.members["ann"].own_env_steps == 0
        rig.roster.leave(older, "the connection ended")
        assert rig.roster.present() == ["ann"]
        for wrong in (Report(applied_improvements=1), Report(skipped_improvements=1)):
            with pytest.raises(WireError, match="improvements applied"):
                rig.roster.report(newer, wrong)

    run(path, test)


def test_a_lower_quorum_frees_a_query_that_waits(path: Path) -> None:
    async def test(rig: Rig) -> None:
        ann = rig.connect("ann")
        query = asyncio.create_task(ask(rig.roster, dict.fromkeys(("ann", "bob"), STATES)))
        await asyncio.sleep(0.15)
        assert not list(orders(ann))
        rig.roster.change(rig.roster.settings.model_copy(update={"quorum": 1}))
        await asyncio.sleep(0.01)
        rig.roster.report(ann, answer(ann))
        assert set((await query).answers) == {"ann"}

    run(path, test, quorum=2)


def small_messages(rig: Rig, name: str, applied: int | None) -> Session:
    """Connect a member that accepts one improvement at a time."""
    return rig.roster.admit(
        name,
        applied or 0,
        is_new=applied is None,
        welcome=lambda improvements: Welcome(improvements=improvements),
        peer=Peer(receive_bytes=1),
    )


def applied_report(order: Order) -> Report:
    return Report(id=order.id, applied_improvements=order.improvements[-1].number)


def test_a_member_that_reconnects_between_pieces_gets_the_rest_once(path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.connect("ann")
        first = small_messages(rig, "bob", None)
        for _ in range(4):
            await rig.improve("ann")
        rig.roster.learn(["bob"], 10)
        (piece,) = orders(first)
        assert [each.number for each in piece.improvements] == [1]
        assert piece.WhichOneof("work") is None
        assert not list(orders(first))  # the next one waits for its report
        assert "bob" not in rig.roster.available()
        rig.roster.report(first, applied_report(piece))
        again = small_messages(rig, "bob", 1)
        numbers = []
        for _ in range(2):
            (piece,) = orders(again)
            numbers += [each.number for each in piece.improvements]
            rig.roster.report(again, applied_report(piece))
            rig.roster.report(again, applied_report(piece))  # a repeat changes nothing
        (last,) = orders(again)
        assert numbers == [2, 3]
        assert [each.number for each in last.improvements] == [4]
        assert (last.learn.phase, last.learn.env_steps) == (1, 10)
        assert "bob" in rig.roster.available()

    run(path, test)


def test_a_member_that_is_dismissed_while_it_catches_up_gets_all_and_a_goodbye(path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.connect("ann")
        bob = small_messages(rig, "bob", None)
        for _ in range(3):
            await rig.improve("ann")
        rig.roster.learn(["bob"], 10)
        rig.roster.dismiss("bob", "for a test")
        numbers, last = [], FromServer()
        while not bob.outbox.empty():
            content = bob.outbox.get_nowait()
            assert content is not None
            last = FromServer.FromString(content)
            if last.HasField("order"):
                numbers += [each.number for each in last.order.improvements]
                rig.roster.report(bob, applied_report(last.order))
        assert numbers == [1, 2, 3]
        assert last.goodbye.reason == Goodbye.FINISHED

    run(path, test)


@pytest.mark.parametrize("learned", [6, 10])
def test_what_a_finished_member_has_learned_is_charged_and_kept(path: Path, learned: int) -> None:
    async def test(rig: Rig) -> None:
        rig.connect("ann")
        rig.roster.learn(["ann"], 10)
        rig.roster.dismiss("ann", "for a test")
        again = rig.connect("ann")
        rig.roster.report(again, Report(phase=1, phase_env_steps=learned))
        assert rig.roster.journal.members()["ann"].own_env_steps == learned
        assert not again.due  # nobody waits for the rest

    run(path, test)


def test_a_member_cannot_make_the_server_write_for_each_message(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(rig: Rig) -> None:
        ann = rig.connect("ann")
        for _ in range(3):
            await rig.improve("ann")
        writes: list[Any] = []
        monkeypatch.setattr(rig.roster.journal, "write", lambda **content: writes.append(content))
        for number in range(100):
            rig.roster.report(ann, Report(applied_improvements=3, skipped_improvements=number % 2))
            rig.roster.report(ann, Report(id=OrderId(epoch=1), applied_improvements=3))
        assert len(writes) <= 2  # of the first skip, and its event
        assert rig.roster.members["ann"].late_answers == 0

    run(path, test)

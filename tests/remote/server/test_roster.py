"""The roster by itself, message by message."""

import asyncio
from collections.abc import Coroutine, Iterator
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
from fedhql.remote.server.session import Session
from fedhql.remote.wire import WireError, pack
from fedhql.remote.wire_pb2 import FromServer, Order, Report, Tensor, Welcome

ACTIONS, BUDGET = 3, 100
STATES = np.zeros((2, 4), dtype=np.float32)
GOOD = np.ones((2, ACTIONS), dtype=np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


class Rig:
    """A roster, and members whose every word is the test's."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.roster = Roster(
            ServiceSettings(**{"exchange_deadline_seconds": 0.1, **settings}),
            Journal(path),
            action_count=ACTIONS,
            env_steps_per_member=BUDGET,
        )

    def come(self, name: str, applied: int | None = None) -> Session:
        return self.roster.admit(
            name,
            applied or 0,
            is_new=applied is None,
            welcome=lambda improvements: Welcome(improvements=improvements),
        )

    async def improve(self, *names: str, server_env_steps: int = 2) -> None:
        """One finished step of the server, paid by the named."""
        cohort = RemoteCohort(self.roster, asyncio.get_running_loop(), ACTIONS)
        cohort.enlist(names)
        cohort.reserve(server_env_steps, least=1)
        cohort.improve(STATES, np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.float32))
        await cohort._finish_step(server_env_steps, {})

    def ask(self, *names: str, quorum: int = 1) -> "asyncio.Task[dict[str, Any]]":
        return asyncio.create_task(ask(self.roster, dict.fromkeys(names, STATES), quorum))


def run(path: Path, test: Any, **settings: Any) -> None:
    async def with_rig() -> None:
        rig = Rig(path, **settings)
        work: Coroutine[Any, Any, None] = test(rig)
        await work
        rig.roster.journal.close()

    asyncio.run(with_rig())


def orders(session: Session) -> Iterator[Order]:
    """What it was sent since the last look."""
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
        session, account = rig.come("ann"), rig.roster.members
        rig.roster.learn(["ann"], 30)
        (order,) = orders(session)
        assert (order.learn.phase, order.learn.env_steps) == (1, 30)
        for phase, done, charged in ((1, 10, 10), (1, 10, 10), (1, 5, 10), (2, 30, 10), (0, 30, 10),
                                     (1, 2**64 - 1, 30), (1, 30, 30)):  # fmt: skip
            rig.roster.report(session, Report(phase=phase, phase_env_steps=done))
            assert account["ann"].own_env_steps == charged
        rig.roster.learn(["ann"], 1_000)  # no more than is left
        (order,) = orders(session)
        assert (order.learn.phase, order.learn.env_steps) == (2, BUDGET - 30)

    run(path, test)


def test_what_is_reserved_for_a_round_is_not_learned_away(path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.come("ann")
        rig.come("bob")
        rig.roster.reserved = {"ann": Fraction(21, 2)}
        assert (rig.roster.learnable("ann"), rig.roster.learnable("bob")) == (BUDGET - 11, BUDGET)
        rig.roster.end_round()
        assert rig.roster.learnable("ann") == BUDGET

    run(path, test)


def test_who_cannot_pay_for_a_step_does_not_keep_the_others_from_it(path: Path) -> None:
    async def test(rig: Rig) -> None:
        for name in ("ann", "bob", "cyd", "dan"):
            rig.come(name)
        cohort = RemoteCohort(rig.roster, asyncio.get_running_loop(), ACTIONS)
        rig.roster.learn(["dan"], BUDGET)  # it has nothing left when that is done
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


def test_a_list_of_members_that_changed_gives_nobody_anothers_number(path: Path) -> None:
    async def first(rig: Rig) -> None:
        rig.come("bob")
        assert rig.roster.members["bob"].number == 1

    async def then(rig: Rig) -> None:
        rig.come("ann")
        rig.come("cyd")
        assert [rig.roster.members[name].number for name in ("bob", "ann", "cyd")] == [1, 2, 0]

    run(path, first, members=("ann", "bob", "cyd"))
    run(path, then, members=("cyd", "ann", "bob"))


def test_a_phase_that_is_not_reported_is_ordered_again(path: Path) -> None:
    async def begin(rig: Rig) -> None:
        rig.come("ann")
        rig.roster.learn(["ann"], 30)

    async def go_on(rig: Rig) -> None:
        session = rig.come("ann", applied=0)
        (order,) = orders(session)
        assert (order.id.epoch, order.learn.phase, order.learn.env_steps) == (2, 1, 30)
        rig.roster.report(session, Report(phase=1, phase_env_steps=30))
        assert not list(orders(rig.come("ann", applied=0)))

    async def done(rig: Rig) -> None:
        assert rig.roster.members["ann"].own_env_steps == 30
        assert not list(orders(rig.come("ann", applied=0)))

    for part in (begin, go_on, done):  # each a new server
        run(path, part)


NONSENSE = {
    "another shape": np.ones((3, ACTIONS), dtype=np.float32),
    "another dtype": np.ones((2, ACTIONS), dtype=np.float64),
    "too few bytes": Tensor(dtype="float32", shape=[2, ACTIONS], data=b"1234"),
    "nothing": Tensor(),
    "NaN": np.array([[0, np.nan, 0]] * 2, dtype=np.float32),
    "infinity": np.array([[0, -np.inf, 0]] * 2, dtype=np.float32),
    "too large": np.array([[0, 1.1e6, 0]] * 2, dtype=np.float32),
}


@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_is_refused_counted_and_three_times_in_a_row_too_much(
    kind: str, path: Path
) -> None:
    async def test(rig: Rig) -> None:
        bad, good = rig.come("bad"), rig.come("good")
        account = rig.roster.members["bad"]
        for values, in_a_row in ((kind, 1), (kind, 2), ("", 0), (kind, 1), (kind, 2), (kind, 3)):
            asked = rig.ask("bad", "good")
            await asyncio.sleep(0)
            rig.roster.report(bad, answer(bad, NONSENSE[kind] if values else GOOD))
            rig.roster.report(good, answer(good))
            assert set(await asked) == ({"good"} if values else {"bad", "good"})
            assert account.refused_in_a_row == in_a_row
        assert account.refused_answers == 5
        assert account.quarantined
        assert rig.roster.present() == ["good"]
        assert (await asyncio.gather(rig.ask("good"), reporting(rig, good)))[0].keys() == {"good"}

    async def after_a_restart(rig: Rig) -> None:
        assert rig.roster.members["bad"].quarantined
        assert rig.roster.members["bad"].refused_answers == 5
        rig.roster.release("bad")
        rig.come("bad", applied=0)
        assert rig.roster.present() == ["bad"]

    run(path, test)
    run(path, after_a_restart)


async def reporting(rig: Rig, session: Session) -> None:
    await asyncio.sleep(0)
    rig.roster.report(session, answer(session))


def test_late_answers_are_dropped_and_counted_and_nobody_is_asked_twice(path: Path) -> None:
    async def test(rig: Rig) -> None:
        slow, quick = rig.come("slow"), rig.come("quick")
        first = rig.ask("slow", "quick")
        await asyncio.sleep(0)
        rig.roster.report(quick, answer(quick))
        late = answer(slow)
        assert set(await first) == {"quick"}  # at the deadline
        second = rig.ask("slow", "quick")
        await asyncio.sleep(0)
        assert not list(orders(slow))  # it still has the first
        rig.roster.report(slow, late)
        (again,) = orders(slow)  # now it can take part
        rig.roster.report(quick, answer(quick, 2 * GOOD))
        rig.roster.report(slow, Report(id=again.id, values=pack(3 * GOOD)))
        rig.roster.report(slow, Report(id=again.id, values=pack(4 * GOOD)))  # the first counts
        values = await second
        assert values["slow"][0, 0] == 3
        rig.roster.report(slow, Report(id=again.id, values=pack(GOOD)))  # when nothing is asked
        assert rig.roster.members["slow"].late_answers == 2
        assert rig.roster.members["quick"].late_answers == 0

    run(path, test)


def test_a_quorum_is_waited_for_and_asked_again(path: Path) -> None:
    async def test(rig: Rig) -> None:
        ann = rig.come("ann")
        asked = rig.ask("ann", "bob", quorum=2)
        await asyncio.sleep(0.15)
        assert not list(orders(ann))  # in vain, as long as bob is away
        bob = rig.come("bob")
        await asyncio.sleep(0.01)
        rig.roster.report(ann, answer(ann))
        rig.roster.leave(bob, "the connection ended")
        bob = rig.come("bob", applied=0)  # in the middle: it is asked again
        rig.roster.report(bob, answer(bob))
        assert set(await asked) == {"ann", "bob"}

    run(path, test)


def test_others_are_a_reason_to_give_up_a_round(path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.come("ann")
        asked = rig.ask("ann", "bob", quorum=2)
        await asyncio.sleep(0)
        rig.come("cyd")
        with pytest.raises(TooFew):
            await asked
        ann, _ = rig.come("ann", applied=0), rig.come("bob")  # who is here, and says nothing
        asked = rig.ask("ann", "bob", quorum=2)
        await asyncio.sleep(0)
        rig.roster.report(ann, answer(ann))
        with pytest.raises(TooFew):
            await asked

    run(path, test)


def test_being_stopped_is_not_being_answered(path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.come("ann")
        asked = rig.ask("ann", quorum=0)  # as evaluation does
        await asyncio.sleep(0)
        rig.roster.stop()
        with pytest.raises(Stopped):
            await asked
        with pytest.raises(Stopped):
            await rig.roster.wait_until(lambda: True)

    run(path, test)


def test_orders_bring_what_is_missing_and_say_what_is_not_kept(path: Path) -> None:
    async def test(rig: Rig) -> None:
        ann = rig.come("ann")
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
        bob = rig.come("bob")  # comes late: what was before is not for it
        assert rig.roster.members["bob"].joined_at == 5
        await rig.improve("ann", "bob")
        rig.roster.learn(["bob"], 10)
        (order,) = orders(bob)
        assert ([i.number for i in order.improvements], order.skip_through) == ([6], 0)

    async def after_a_restart(rig: Rig) -> None:
        assert rig.roster.server_env_steps == 12
        shares = [Fraction(member.share) for member in rig.roster.members.values()]
        assert shares == [Fraction(11), Fraction(1)]
        (order,) = orders(rig.come("ann", applied=1))
        assert [i.number for i in order.improvements] == [4, 5, 6]
        assert order.skip_through == 3
        (order,) = orders(rig.come("bob"))  # it has lost everything, and begins where it began
        assert [i.number for i in order.improvements] == [6]

    run(path, test, catch_up_improvements=3)
    run(path, after_a_restart, catch_up_improvements=3)


def test_a_connection_that_was_replaced_has_no_say(path: Path) -> None:
    async def test(rig: Rig) -> None:
        older = rig.come("ann")
        rig.roster.learn(["ann"], 30)
        newer = rig.come("ann", applied=0)
        rig.roster.report(older, Report(phase=1, phase_env_steps=30))
        assert rig.roster.members["ann"].own_env_steps == 0
        rig.roster.leave(older, "the connection ended")
        assert rig.roster.present() == ["ann"]
        for wrong in (Report(applied_improvements=1), Report(skipped_improvements=1)):
            with pytest.raises(WireError, match="improvements applied"):
                rig.roster.report(newer, wrong)

    run(path, test)

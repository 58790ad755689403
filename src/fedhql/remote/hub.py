"""The server's side of the wire: who is there, what they are asked, what they say.

All of it lives in one event loop. A member is a *session* while it is connected and an account
(`MemberRecord`) always. Work goes out as orders; whatever a member lacks of the improvements goes
out with its next order, so that catching up needs no conversation of its own.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhql.contract import Values
from fedhql.remote.journal import Journal, MemberRecord
from fedhql.remote.settings import ServiceSettings
from fedhql.remote.status import Event, LatencyRecord
from fedhql.remote.wire import WireError, key_of, pack, unpack
from fedhql.remote.wire_pb2 import (
    FromServer,
    Goodbye,
    Improvement,
    Learn,
    Order,
    OrderId,
    Report,
    Welcome,
)

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Session:
    """One connection of one member. What is put into `outbox` is sent; None ends it."""

    name: str
    applied: int  # improvements it has said to have, or was sent
    asked: int = 0  # the question it has not answered; it gets no other before it has
    outbox: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)

    def send(self, message: FromServer) -> None:
        self.outbox.put_nowait(message.SerializeToString())

    def end(self, reason: Goodbye.Reason, detail: str) -> None:
        self.send(FromServer(goodbye=Goodbye(reason=reason, detail=detail)))
        self.outbox.put_nowait(None)


@dataclass(eq=False)
class _Exchange:
    """Questions that are open: what each member was asked, and what came back."""

    number: int
    states: Mapping[str, NDArray[Any]]
    quorum: int
    waiting: set[str]  # for their answers
    answers: dict[str, Values] = field(default_factory=dict)


class Hub:
    """Members come and go underneath; above, there are only `ask` and `learn`."""

    def __init__(
        self,
        settings: ServiceSettings,
        journal: Journal,
        *,
        action_count: int,
        env_steps_per_member: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self.journal = settings, journal
        self.members = journal.members()
        self.sessions: dict[str, Session] = {}
        self.latencies = LatencyRecord()
        self.events: deque[Event] = deque(journal.events(50), maxlen=50)
        self.env_steps_per_member = env_steps_per_member
        self.epoch: int = (journal.fact("epoch") or 0) + 1
        journal.write(facts={"epoch": self.epoch})
        self._action_count, self._clock = action_count, clock
        self._window: deque[Improvement] = deque(
            journal.improvements(), maxlen=settings.catch_up_improvements
        )
        self.improvements: int = journal.fact("improvements") or 0
        self.server_env_steps: int = journal.fact("server_env_steps") or 0
        self._orders = 0
        self._exchange: _Exchange | None = None
        self._waiting: set[asyncio.Future[None]] = set()  # for any change
        self.stopping = False
        # What the round that is on may still cost each member that takes part.
        self.reserved: dict[str, Fraction] = {}
        # Called with a member that has come, or has finished a phase, and has nothing to do.
        self.on_idle: Callable[[MemberRecord], None] = lambda member: None

    # Members coming and going

    def admit(
        self, name: str, applied: int, *, is_new: bool, welcome: Callable[[int], Welcome]
    ) -> Session:
        """A member has connected, and nothing is wrong with it: `welcome` it, and go on."""
        if name not in self.members:
            listed = self.settings.members
            number = listed.index(name) if listed else len(self.members)
            self.members[name] = MemberRecord(name, number, self.improvements)
            self.members[name].applied_improvements = self.improvements
        member = self.members[name]
        if is_new:  # it has nothing of this federation, or nothing any more
            applied = member.joined_at
        if applied < member.applied_improvements:
            self.tell(
                f"{name} comes back with {applied} improvements of "
                f"{member.applied_improvements} it had; the rest goes to it again",
                level="warning",
            )
        if (before := self.sessions.pop(name, None)) is not None:
            before.end(Goodbye.REPLACED, "the same member has connected once more")
        member.connections += 1
        member.applied_improvements = applied
        session = self.sessions[name] = Session(name, applied)
        session.send(FromServer(welcome=welcome(applied)))
        self.journal.write(members=[member])
        self.tell(f"{name} connected")
        # What it was asked before and has not answered:
        if member.finished:
            self._part(session, "it has finished")
        elif member.learning:
            self._order_learning(name)
        else:
            self.on_idle(member)
        self._ask_too(session)
        self._notify()
        return session

    def leave(self, session: Session, why: str) -> None:
        if self.sessions.get(session.name) is session:  # else it was replaced
            del self.sessions[session.name]
            self.tell(f"{session.name} is away: {why}")
            self._notify()

    def expel(self, session: Session, why: str) -> None:
        """At once, also if it no longer reads what it is sent."""
        session.end(Goodbye.REFUSED, why)
        self.leave(session, why)

    def present(self) -> list[str]:
        """Who can be asked now, as the settings list them or in the order they first came."""
        here = [member for name, member in self.members.items() if self._is_here(name)]
        return [member.name for member in sorted(here, key=lambda member: member.number)]

    def dismiss(self, name: str, detail: str) -> None:
        """Its budget is spent."""
        member = self.members[name]
        member.finished = True
        self.journal.write(members=[member])
        if (session := self.sessions.get(name)) is not None:
            self._part(session, detail)
        self.tell(f"{name} has finished: {detail}")

    def _part(self, session: Session, detail: str) -> None:
        """The last improvements, which no question takes along; then it ends the connection."""
        self._orders += 1
        session.send(FromServer(order=self._order(self._orders, session)))
        session.applied = self.improvements
        session.send(FromServer(goodbye=Goodbye(reason=Goodbye.FINISHED, detail=detail)))

    def parted(self, session: Session) -> None:
        """It has saved all it was sent."""
        member = self.members[session.name]
        if member.finished and self.sessions.get(session.name) is session:
            member.parted = True
            self.journal.write(members=[member])
            self._notify()

    def release(self, name: str) -> None:
        """Out of quarantine, on the operator's word."""
        member = self.members[name]
        member.quarantined, member.refused_in_a_row = "", 0
        self.journal.write(members=[member])
        self.tell(f"{name} is released from quarantine")

    def stop(self) -> None:
        """Whoever waits for members is told so, and they are told to come again."""
        self.stopping = True
        for session in self.sessions.values():
            session.end(Goodbye.STOPPED, "the server stops; it may be started again")
        self._notify()

    def tell(self, text: str, *, level: str = "info", keep: bool = True) -> None:
        """To the log and the status page; what a stranger can cause is not kept on disk."""
        event = Event(datetime.now(UTC).isoformat(timespec="seconds"), level, text)
        self.events.appendleft(event)
        if keep:
            self.journal.write(event=event)
        log.log(logging.WARNING if level == "warning" else logging.INFO, "%s", text)

    async def wait_until(self, reached: Callable[[], bool], seconds: float | None = None) -> bool:
        """Whether it was, in that time. Looked at whenever anything has changed."""
        deadline = None if seconds is None else self._clock() + seconds
        while True:
            if self.stopping:  # first: that everybody is sent away is not what is waited for
                raise Stopped
            if reached():
                return True
            left = None if deadline is None else deadline - self._clock()
            if left is not None and left <= 0:
                return False
            await self._change(left)

    async def _change(self, seconds: float | None) -> None:
        """The next one, or that long. (`asyncio.wait_for` would cost a task for each exchange.)"""
        loop = asyncio.get_running_loop()
        change: asyncio.Future[None] = loop.create_future()
        self._waiting.add(change)
        timer = None if seconds is None else loop.call_later(seconds, _settle, change)
        try:
            await change
        finally:
            self._waiting.discard(change)
            if timer is not None:
                timer.cancel()

    # Work

    async def ask(self, states: Mapping[str, NDArray[Any]], quorum: int) -> dict[str, Values]:
        """Everybody's values at their states, of those who gave usable ones in time.

        Again and again, under new identities, until there are `quorum` of them; or TooFew.
        """
        while True:
            await self._wait_for_quorum(states, quorum)
            self._orders += 1
            exchange = self._exchange = _Exchange(self._orders, states, quorum, set(states))
            begun = self._clock()
            messages: dict[tuple[int, int], bytes] = {}  # most are sent the same
            for name, array in states.items():
                if self._is_here(name) and not (session := self.sessions[name]).asked:
                    session.asked = exchange.number
                    key = (id(array), session.applied)
                    if key not in messages:
                        messages[key] = self._question(exchange, session).SerializeToString()
                    session.outbox.put_nowait(messages[key])
                    session.applied = self.improvements
            try:
                await self.wait_until(
                    partial(self._is_settled, exchange),
                    self.settings.exchange_deadline_seconds,
                )
            finally:
                self._exchange = None
            self.latencies.add(self._clock() - begun)
            if len(exchange.answers) >= quorum:
                return exchange.answers
            self.tell(
                f"only {len(exchange.answers)} usable answers, {quorum} are needed: asked again",
                level="warning",
            )
            if any(name not in states for name in self.present()):
                raise TooFew

    def _is_settled(self, exchange: _Exchange) -> bool:
        """Nobody is waited for who is away or late, unless it takes them to make a quorum."""
        here = (self.sessions[name] for name in exchange.waiting if self._is_here(name))
        if any(session.asked == exchange.number for session in here):
            return False
        return len(exchange.answers) >= exchange.quorum or not exchange.waiting

    def learn(
        self,
        names: Iterable[str],
        env_steps: int,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Send the named into a phase of self-learning that long, or as long as the budget lasts.

        One that is in a phase goes on with it. `facts` become true together with it.
        """
        begun = []
        for name in names:
            member, affordable = self.members[name], min(env_steps, self.learnable(name))
            if not member.learning and affordable > 0:
                member.phase += 1
                member.phase_size, member.phase_env_steps = affordable, 0
                begun.append(member)
        self.journal.write(facts=facts, members=begun)  # before anybody hears of it
        for member in begun:
            self._order_learning(member.name)

    def learnable(self, name: str) -> int:
        """Env steps it may take by itself; not those the round may cost it."""
        left = self.members[name].left(self.env_steps_per_member)
        return int(left - self.reserved.get(name, Fraction(0)))

    def end_round(self) -> None:
        """What was kept back for it is free again."""
        self.reserved = {}
        for name in self.present():
            if not self.members[name].learning:
                self.on_idle(self.members[name])

    def improve(self, improvement: Improvement) -> None:
        """It is in the journal; it goes out with each member's next order."""
        self.improvements = improvement.number
        self._window.append(improvement)

    def _order_learning(self, name: str) -> None:
        member = self.members[name]
        whole = self.settings.mode == "rounds"
        chunk = member.phase_size if whole else self.settings.chunk_env_steps
        if (session := self.sessions.get(name)) is None:
            return  # it is told when it comes back
        self._orders += 1
        order = self._order(self._orders, session)
        order.learn.CopyFrom(
            Learn(phase=member.phase, env_steps=member.phase_size, chunk_env_steps=chunk)
        )
        session.send(FromServer(order=order))
        session.applied = self.improvements

    def _question(self, exchange: _Exchange, session: Session) -> FromServer:
        order = self._order(exchange.number, session)
        order.query.states.CopyFrom(pack(exchange.states[session.name]))
        return FromServer(order=order)

    def _ask_too(self, session: Session) -> None:
        """It has come, or is done with an older question: the open one is for it as well."""
        exchange = self._exchange
        if exchange is not None and session.name in exchange.waiting and not session.asked:
            session.asked = exchange.number
            session.send(self._question(exchange, session))
            session.applied = self.improvements

    def _order(self, number: int, session: Session) -> Order:
        """With every improvement the member lacks; what is no longer kept it is told to skip."""
        missing = [i for i in self._window if i.number > session.applied]
        kept_from = missing[0].number if missing else self.improvements + 1
        return Order(
            id=OrderId(epoch=self.epoch, number=number),
            improvements=missing,
            skip_through=kept_from - 1 if session.applied < kept_from - 1 else 0,
        )

    def _is_here(self, name: str) -> bool:
        return name in self.sessions and not self.members[name].over

    async def _wait_for_quorum(self, names: Mapping[str, Any], quorum: int) -> None:
        def enough() -> bool:
            return sum(name in names for name in self.present()) >= quorum

        if enough():
            return
        self.tell(f"waiting for members: {quorum} are needed", level="warning")
        if not await self.wait_until(enough, self.settings.exchange_deadline_seconds):
            await self.wait_until(lambda: enough() or len(self.present()) >= quorum)
            if not enough():
                raise TooFew

    # What members say

    def report(self, session: Session, report: Report) -> None:
        """One message of a member; whatever is wrong with it is the member's own loss."""
        if self.sessions.get(session.name) is not session:
            return  # it was replaced or expelled
        member = self.members[session.name]
        if not report.skipped_improvements <= report.applied_improvements <= self.improvements:
            raise WireError(
                f"{report.applied_improvements} improvements applied, "
                f"{report.skipped_improvements} of them skipped; {self.improvements} exist"
            )
        member.applied_improvements = report.applied_improvements
        member.skipped_improvements = report.skipped_improvements
        if report.phase:
            # What is reported of an unfinished phase is reported again.
            if member.has_learned(report.phase, report.phase_env_steps) and not member.learning:
                self.journal.write(members=[member])
                self.on_idle(member)
            self._notify()
        elif not member.finished:  # then it has only what was left to send
            self._answered(session, member, report)
            if self._exchange is not None and self._is_settled(self._exchange):
                self._notify()

    def _answered(self, session: Session, member: MemberRecord, report: Report) -> None:
        exchange = self._exchange
        if key_of(report.id) == (self.epoch, session.asked):
            session.asked = 0
        if exchange is None or key_of(report.id) != (self.epoch, exchange.number):
            member.late_answers += 1
            self._ask_too(session)
            return
        if member.name not in exchange.waiting:
            return  # a repeat of an answer that is in
        exchange.waiting.discard(member.name)
        try:
            values = self._usable(report, len(exchange.states[member.name]))
        except WireError as error:
            member.refused_answers += 1
            member.refused_in_a_row += 1
            self.journal.write(members=[member])
            self.tell(f"{member.name}: answer refused: {error}", level="warning")
            if member.refused_in_a_row >= self.settings.quarantine_after:
                self._quarantine(session, str(error))
            return
        member.refused_in_a_row = 0
        exchange.answers[member.name] = values

    def _usable(self, report: Report, rows: int) -> Values:
        values = unpack(report.values, dtype="float32", shape=(rows, self._action_count))
        largest = float(np.abs(values).max(initial=0))
        if not largest <= self.settings.value_bound:  # NaN is not, either
            raise WireError(f"a value of {largest:g}, allowed: {self.settings.value_bound:g}")
        return values

    def _quarantine(self, session: Session, why: str) -> None:
        member = self.members[session.name]
        member.quarantined = why
        self.journal.write(members=[member])
        self.tell(
            f"{member.name} is quarantined after {member.refused_in_a_row} refused answers in a "
            f"row, the last: {why}",
            level="warning",
        )
        self.expel(session, f"quarantined: {why}")

    def _notify(self) -> None:
        for change in self._waiting:
            _settle(change)


def _settle(change: asyncio.Future[None]) -> None:
    if not change.done():
        change.set_result(None)


class TooFew(Exception):
    """Too few of those asked are there, but others are: a new round can go on with them."""


class Stopped(Exception):
    """The server has been told to stop; what it was doing is in the journal as far as it got."""

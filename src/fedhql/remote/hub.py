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
    Query,
    Report,
    Welcome,
)

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Session:
    """One connection of one member. What is put into `outbox` is sent; None ends it."""

    name: str
    applied: int  # improvements it has said to have, or was sent
    outbox: asyncio.Queue[FromServer | None] = field(default_factory=asyncio.Queue)

    def send(self, order: Order) -> None:
        self.outbox.put_nowait(FromServer(order=order))

    def end(self, reason: Goodbye.Reason, detail: str) -> None:
        goodbye = Goodbye(reason=reason, detail=detail)
        self.outbox.put_nowait(FromServer(goodbye=goodbye))
        self.outbox.put_nowait(None)


@dataclass(eq=False)
class _Exchange:
    """Questions that are open: what each member was asked, and what came back."""

    number: int
    queries: Mapping[str, Query]
    rows: Mapping[str, int]
    answers: dict[str, Values] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def silent(self, among: Iterable[str]) -> list[str]:
        settled = self.answers.keys() | self.refused.keys()
        return [name for name in among if name in self.queries and name not in settled]


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
        self._changed = asyncio.Event()
        self.stopping = False
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
            self.members[name] = MemberRecord(name, number, applied_improvements=self.improvements)
        member = self.members[name]
        if is_new:  # it has nothing of this federation, or nothing any more
            applied = member.applied_improvements if member.connections == 0 else 0
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
        session.outbox.put_nowait(FromServer(welcome=welcome(applied)))
        self.journal.write(members=[member])
        self.tell(f"{name} connected")
        # What it was asked before and has not answered:
        if member.learning:
            self._order_learning(name)
        else:
            self.on_idle(member)
        if self._exchange is not None and self._exchange.silent([name]):
            self._send(session, self._query_order(self._exchange, name))
        self._notify()
        return session

    def leave(self, session: Session, why: str) -> None:
        if self.sessions.get(session.name) is session:  # else it was replaced
            del self.sessions[session.name]
            self.tell(f"{session.name} is away: {why}")
            self._notify()

    def present(self) -> list[str]:
        """Who can be asked now, as the settings list them or in the order they first came."""
        here = [
            member
            for name, member in self.members.items()
            if name in self.sessions and not member.quarantined and not member.finished
        ]
        return [member.name for member in sorted(here, key=lambda member: member.number)]

    def dismiss(self, name: str, detail: str) -> None:
        """Its budget is spent."""
        member = self.members[name]
        member.finished = True
        self.journal.write(members=[member])
        if (session := self.sessions.get(name)) is not None:
            session.end(Goodbye.FINISHED, detail)
        self.tell(f"{name} has finished: {detail}")

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
        while not reached():
            if self.stopping:
                raise Stopped
            self._changed.clear()
            left = None if deadline is None else deadline - self._clock()
            if left is not None and left <= 0:
                return False
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                return reached()
        return True

    # Work

    async def ask(self, states: Mapping[str, NDArray[Any]], quorum: int) -> dict[str, Values]:
        """Everybody's values at their states, of those who gave usable ones in time.

        Again and again, under new identities, until there are `quorum` of them.
        """
        while True:
            await self._wait_for_quorum(states, quorum)
            packed: dict[int, Query] = {}  # the same array for all is packed once
            queries = {
                name: packed.setdefault(id(array), Query(states=pack(array)))
                for name, array in states.items()
            }
            self._orders += 1
            exchange = self._exchange = _Exchange(
                self._orders, queries, {name: len(array) for name, array in states.items()}
            )
            begun = self._clock()
            for name in states:
                if name in self.sessions and not self.members[name].quarantined:
                    self._send(self.sessions[name], self._query_order(exchange, name))
            deadline = self.settings.exchange_deadline_seconds

            def settled(exchange: _Exchange = exchange) -> bool:
                """Nobody is waited for who is away, unless it takes them to make a quorum."""
                return not exchange.silent(self.present()) and (
                    len(exchange.answers) >= quorum or not exchange.silent(exchange.queries)
                )

            try:
                await self.wait_until(settled, deadline)
            finally:
                self._exchange = None
            self.latencies.add(self._clock() - begun)
            if len(exchange.answers) >= quorum:
                return exchange.answers
            self.tell(
                f"only {len(exchange.answers)} usable answers, {quorum} are needed: asked again",
                level="warning",
            )

    def learn(
        self,
        names: Iterable[str],
        env_steps: Mapping[str, int],
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Send the named into a phase of self-learning; one that is in a phase goes on with it.

        `facts` become true together with it.
        """
        begun = []
        for name in names:
            member = self.members[name]
            if not member.learning and env_steps[name] > 0:
                member.phase += 1
                member.phase_size, member.phase_env_steps = env_steps[name], 0
                begun.append(member)
        self.journal.write(facts=facts, members=begun)  # before anybody hears of it
        for member in begun:
            self._order_learning(member.name)

    def improve(self, improvement: Improvement) -> None:
        """It is in the journal; it goes out with each member's next order."""
        self.improvements = improvement.number
        self._window.append(improvement)

    def _order_learning(self, name: str) -> None:
        member = self.members[name]
        whole = self.settings.mode == "rounds"
        chunk = member.phase_size if whole else self.settings.chunk_env_steps
        self._orders += 1
        order = Order(
            learn=Learn(phase=member.phase, env_steps=member.phase_size, chunk_env_steps=chunk)
        )
        order.id.epoch, order.id.number = self.epoch, self._orders
        if name in self.sessions:
            self._send(self.sessions[name], order)

    def _query_order(self, exchange: _Exchange, name: str) -> Order:
        order = Order(query=exchange.queries[name])
        order.id.epoch, order.id.number = self.epoch, exchange.number
        return order

    def _send(self, session: Session, order: Order) -> None:
        """With every improvement the member lacks; what is no longer kept it is told to skip."""
        missing = [i for i in self._window if i.number > session.applied]
        kept_from = missing[0].number if missing else self.improvements + 1
        outgoing = Order()
        outgoing.CopyFrom(order)
        if session.applied < kept_from - 1:
            outgoing.skip_through = kept_from - 1
        outgoing.improvements.extend(missing)
        session.applied = self.improvements
        session.send(outgoing)

    async def _wait_for_quorum(self, names: Mapping[str, Any], quorum: int) -> None:
        def enough() -> bool:
            return sum(name in names for name in self.present()) >= quorum

        if not enough():
            self.tell(f"waiting for members: {quorum} are needed", level="warning")
            await self.wait_until(enough)

    # What members say

    def report(self, session: Session, report: Report) -> None:
        """One message of a member; whatever is wrong with it is the member's own loss."""
        member = self.members[session.name]
        if report.applied_improvements > self.improvements:
            raise WireError(
                f"{report.applied_improvements} improvements applied, {self.improvements} exist"
            )
        member.applied_improvements = max(member.applied_improvements, report.applied_improvements)
        member.skipped_improvements = max(member.skipped_improvements, report.skipped_improvements)
        if report.phase:
            member.has_learned(report.phase, report.phase_env_steps)
            if not member.learning:  # what is reported of an unfinished phase is reported again
                self.journal.write(members=[member])
                self.on_idle(member)
        else:
            self._answered(member, report)
        self._notify()

    def _answered(self, member: MemberRecord, report: Report) -> None:
        exchange = self._exchange
        if exchange is None or key_of(report.id) != (self.epoch, exchange.number):
            member.late_answers += 1
            return
        if not exchange.silent([member.name]):
            return  # a repeat of an answer that is in
        try:
            values = self._usable(report, exchange.rows[member.name])
        except WireError as error:
            exchange.refused[member.name] = str(error)
            member.refused_answers += 1
            member.refused_in_a_row += 1
            self.tell(f"{member.name}: answer refused: {error}", level="warning")
            if member.refused_in_a_row >= self.settings.quarantine_after:
                self._quarantine(member, str(error))
            return
        member.refused_in_a_row = 0
        exchange.answers[member.name] = values

    def _usable(self, report: Report, rows: int) -> Values:
        values = unpack(report.values, dtype="float32", shape=(rows, self._action_count))
        if not np.isfinite(values).all():
            raise WireError("NaN or infinity")
        if (largest := float(np.abs(values).max(initial=0))) > self.settings.value_bound:
            raise WireError(f"a value of {largest:g}, allowed: {self.settings.value_bound:g}")
        return values

    def _quarantine(self, member: MemberRecord, why: str) -> None:
        member.quarantined = why
        self.journal.write(members=[member])
        self.tell(
            f"{member.name} is quarantined after {member.refused_in_a_row} refused answers in a "
            f"row, the last: {why}",
            level="warning",
        )
        self.sessions[member.name].end(Goodbye.REFUSED, f"quarantined: {why}")

    def _notify(self) -> None:
        self._changed.set()


class Stopped(Exception):
    """The server has been told to stop; what it was doing is in the journal as far as it got."""

"""The server's side of the wire: who is there, what they are asked, what they say.

All of it lives in one event loop. A member is a *session* while it is connected and an account
(`MemberRecord`) always. Work goes out as orders.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from numpy.typing import NDArray

from fedhql.remote.server.catch_up import CatchUpWindow
from fedhql.remote.server.condition import Condition
from fedhql.remote.server.exchange import Exchange
from fedhql.remote.server.journal import Journal, MemberRecord
from fedhql.remote.server.orders import Orders
from fedhql.remote.server.service_settings import ServiceSettings
from fedhql.remote.server.session import Session
from fedhql.remote.server.status import Event, LatencyRecord
from fedhql.remote.wire import WireError, key_of
from fedhql.remote.wire_pb2 import FromServer, Goodbye, MaskingKey, Report, Welcome

log = logging.getLogger(__name__)


class Roster:
    """Members come and go underneath; above, there are only `hold` and `learn`."""

    def __init__(
        self,
        settings: ServiceSettings,
        journal: Journal,
        *,
        action_count: int,
        env_steps_per_member: int,
        secure_value_bound: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """With a `secure_value_bound`, members answer under masks, and only their sums are seen."""
        self.settings, self.journal = settings, journal
        self.secure_value_bound = secure_value_bound
        self.members = journal.members()
        self.sessions: dict[str, Session] = {}
        self.latencies = LatencyRecord()
        self.events: deque[Event] = deque(journal.events(50), maxlen=50)
        self.env_steps_per_member = env_steps_per_member
        epoch: int = (journal.fact("epoch") or 0) + 1
        journal.write(facts={"epoch": epoch})
        self._action_count, self._clock = action_count, clock
        self.window = CatchUpWindow(
            journal.improvements(),
            journal.fact("improvements") or 0,
            settings.catch_up_improvements,
        )
        self._orders = Orders(epoch, self.window)
        self.server_env_steps: int = journal.fact("server_env_steps") or 0
        self._exchange: Exchange | None = None
        self._condition = Condition(clock)
        self.wait_until = self._condition.wait_until
        # What the round that is on may still cost each member that takes part.
        self.reserved: dict[str, Fraction] = {}
        # Called with a member that has come, or has finished a phase, and has nothing to do.
        self.on_idle: Callable[[MemberRecord], None] = lambda member: None

    @property
    def improvements(self) -> int:
        """There have been so many."""
        return self.window.last

    # Members coming and going

    def admit(
        self,
        name: str,
        applied: int,
        *,
        is_new: bool,
        welcome: Callable[[int], Welcome],
        masking_key: MaskingKey | None = None,
    ) -> Session:
        """A member has connected, and nothing is wrong with it: `welcome` it, and go on."""
        if name not in self.members:
            self.members[name] = MemberRecord(name, self._free_number(name), self.improvements)
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
        session = self.sessions[name] = Session(name, applied, masking_key)
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
        self._condition.notify()
        return session

    def _free_number(self, name: str) -> int:
        """As the settings list it, unless they were changed and another has that number."""
        listed, taken = self.settings.members, {m.number for m in self.members.values()}
        number = listed.index(name) if listed else len(taken)
        return max(taken) + 1 if number in taken else number

    def leave(self, session: Session, why: str) -> None:
        if self.sessions.get(session.name) is session:  # else it was replaced
            del self.sessions[session.name]
            self.tell(f"{session.name} is away: {why}")
            self._condition.notify()

    def expel(self, session: Session, why: str, reason: Goodbye.Reason = Goodbye.REFUSED) -> None:
        """At once, also if it no longer reads what it is sent; nor is it heard any more."""
        session.end(reason, why)
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
        self._orders.send_improvements(session)
        session.send(FromServer(goodbye=Goodbye(reason=Goodbye.FINISHED, detail=detail)))

    def parted(self, session: Session) -> None:
        """It has saved all it was sent."""
        member = self.members[session.name]
        if member.finished and self.sessions.get(session.name) is session:
            member.parted = True
            self.journal.write(members=[member])
            self._condition.notify()

    def release(self, name: str) -> None:
        """Out of quarantine, on the operator's word."""
        member = self.members[name]
        member.quarantined, member.refused_in_a_row = "", 0
        self.journal.write(members=[member])
        self.tell(f"{name} is released from quarantine")

    def stop(self) -> None:
        """Whoever waits for members is told so, and they are told to come again."""
        for session in self.sessions.values():
            session.end(Goodbye.STOPPED, "the server stops; it may be started again")
        self._condition.stop()

    def tell(self, text: str, *, level: str = "info", keep: bool = True) -> None:
        """To the log and the status page; what a stranger can cause is not kept on disk."""
        event = Event(datetime.now(UTC).isoformat(timespec="seconds"), level, text)
        self.events.appendleft(event)
        if keep:
            self.journal.write(event=event)
        log.log(logging.WARNING if level == "warning" else logging.INFO, "%s", text)

    # Work

    async def hold(
        self,
        states: Mapping[str, NDArray[Any]],
        quorum: int,
        cohort: Sequence[MaskingKey] = (),
    ) -> Exchange:
        """One exchange, from its questions to the last answer that is waited for."""
        exchange = Exchange(self._orders.next_number(), states, quorum, set(states), cohort)
        self._exchange, begun = exchange, self._clock()
        here = (self.sessions[name] for name in states if self._is_here(name))
        self._orders.send_question([s for s in here if not s.asked], exchange)
        try:
            await self.wait_until(self._is_settled, self.settings.exchange_deadline_seconds)
        finally:
            self._exchange = None
        self.latencies.add(self._clock() - begun)
        return exchange

    def _is_settled(self) -> bool:
        """The open exchange."""
        exchange = self._exchange
        if exchange is None:
            return False
        here = (self.sessions[name] for name in exchange.waiting if self._is_here(name))
        return exchange.is_settled(any(session.asked == exchange.number for session in here))

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

    def _order_learning(self, name: str) -> None:
        member = self.members[name]
        whole = self.settings.mode == "rounds"
        chunk = member.phase_size if whole else self.settings.chunk_env_steps
        if (session := self.sessions.get(name)) is not None:  # else it is told when it comes back
            self._orders.send_learning(session, member, chunk)

    def _ask_too(self, session: Session) -> None:
        """It has come, or is done with an older question: the open one is for it as well."""
        exchange = self._exchange
        if exchange is None or exchange.cohort:  # whose masks cancel was settled at its beginning
            return
        if session.name in exchange.waiting and not session.asked:
            self._orders.send_question([session], exchange)

    def _is_here(self, name: str) -> bool:
        return name in self.sessions and not self.members[name].over

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
            self._condition.notify()
        elif not member.finished:  # then it has only what was left to send
            self._answered(session, member, report)
            if self._is_settled():
                self._condition.notify()

    def _answered(self, session: Session, member: MemberRecord, report: Report) -> None:
        exchange = self._exchange
        if key_of(report.id) == (self._orders.epoch, session.asked):
            session.asked = 0
        if exchange is None or key_of(report.id) != (self._orders.epoch, exchange.number):
            member.late_answers += 1
            self._ask_too(session)
            return
        if member.name not in exchange.waiting:
            return  # a repeat of an answer that is in
        bound = self.settings.value_bound
        try:
            exchange.take(member.name, report.values, action_count=self._action_count, bound=bound)
        except WireError as error:
            member.refused_answers += 1
            member.refused_in_a_row += 1
            self.journal.write(members=[member])
            self.tell(f"{member.name}: answer refused: {error}", level="warning")
            if member.refused_in_a_row >= self.settings.quarantine_after:
                self._quarantine(session, str(error))
            return
        member.refused_in_a_row = 0

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

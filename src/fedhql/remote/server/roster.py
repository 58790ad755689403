"""The roster: the members of a federation, the orders sent to them, and their reports.

The roster belongs to one event loop. A member always has a `MemberRecord`, and a `Session` while it
is connected.
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
    """All members. `hold` and `learn` give them work while they connect and disconnect."""

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
        """Load the members from the journal and start a new epoch.

        With a `secure_value_bound`, members mask their answers, and the server sees only sums.
        """
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
        self.catch_up_window = CatchUpWindow(
            journal.improvements(),
            journal.fact("improvements") or 0,
            settings.catch_up_improvements,
        )
        self._orders = Orders(epoch, self.catch_up_window)
        self.server_env_steps: int = journal.fact("server_env_steps") or 0
        self._exchange: Exchange | None = None
        self._condition = Condition(clock)
        self.wait_until = self._condition.wait_until
        # Env steps that the current round may still cost each of its members.
        self.reserved: dict[str, Fraction] = {}
        # Called with a member that has connected or finished a phase, and has no work.
        self.on_idle: Callable[[MemberRecord], None] = lambda member: None

    @property
    def improvements(self) -> int:
        """The number of improvements so far."""
        return self.catch_up_window.last

    # Connections

    def admit(
        self,
        name: str,
        applied: int,
        *,
        is_new: bool,
        welcome: Callable[[int], Welcome],
        masking_key: MaskingKey | None = None,
    ) -> Session:
        """Start a session for a member that passed admission, and send its open work again.

        `applied` is the last improvement that the member has. `is_new` means that the member has no
        state of this federation. `welcome` builds the reply from the improvement to start after.
        """
        if name not in self.members:
            self.members[name] = MemberRecord(name, self._free_number(name), self.improvements)
            self.members[name].applied_improvements = self.improvements
        member = self.members[name]
        if is_new:  # also true for a known member that has lost its state
            applied = member.joined_at
        if applied < member.applied_improvements:
            self.tell(
                f"{name} reconnected with {applied} improvements, but it had "
                f"{member.applied_improvements} before; sending the rest again",
                level="warning",
            )
        if (before := self.sessions.pop(name, None)) is not None:
            before.end(Goodbye.REPLACED, "the same member has connected again")
        member.connections += 1
        member.applied_improvements = applied
        session = self.sessions[name] = Session(name, applied, masking_key)
        session.send(FromServer(welcome=welcome(applied)))
        self.journal.write(members=[member])
        self.tell(f"{name} connected")
        if member.finished:
            self._send_last_order(session, "the member has finished")
        elif member.learning:
            self._order_learning(name)
        else:
            self.on_idle(member)
        self._send_open_question(session)
        self._condition.notify()
        return session

    def _free_number(self, name: str) -> int:
        """Return the index in service.members, or the next free number if that one is taken."""
        listed, taken = self.settings.members, {m.number for m in self.members.values()}
        number = listed.index(name) if listed else len(taken)
        return max(taken) + 1 if number in taken else number

    def leave(self, session: Session, why: str) -> None:
        """Remove a session that has ended."""
        if self.sessions.get(session.name) is session:  # a newer session may have replaced it
            del self.sessions[session.name]
            self.tell(f"{session.name} is away: {why}")
            self._condition.notify()

    def expel(self, session: Session, why: str, reason: Goodbye.Reason = Goodbye.REFUSED) -> None:
        """Disconnect a member at once and ignore its later messages, even if it never reads."""
        session.end(reason, why)
        self.leave(session, why)

    def present(self) -> list[str]:
        """Return the names of the members that can get work now, in order of number."""
        here = [member for name, member in self.members.items() if self._is_here(name)]
        return [member.name for member in sorted(here, key=lambda member: member.number)]

    def dismiss(self, name: str, detail: str) -> None:
        """Mark a member as finished and send it its last improvements and a Goodbye."""
        member = self.members[name]
        member.finished = True
        self.journal.write(members=[member])
        if (session := self.sessions.get(name)) is not None:
            self._send_last_order(session, detail)
        self.tell(f"{name} has finished: {detail}")

    def _send_last_order(self, session: Session, detail: str) -> None:
        """Send the last improvements and a Goodbye. The member then ends the connection."""
        self._orders.send_improvements(session)
        session.send(FromServer(goodbye=Goodbye(reason=Goodbye.FINISHED, detail=detail)))

    def parted(self, session: Session) -> None:
        """Record that a finished member has saved everything it was sent."""
        member = self.members[session.name]
        if member.finished and self.sessions.get(session.name) is session:
            member.parted = True
            self.journal.write(members=[member])
            self._condition.notify()

    def release(self, name: str) -> None:
        """Release a member from quarantine, on request of the operator."""
        member = self.members[name]
        member.quarantined, member.refused_in_a_row = "", 0
        self.journal.write(members=[member])
        self.tell(f"{name} is released from quarantine")

    def stop(self) -> None:
        """Disconnect all members, so that they retry later, and raise Stopped in every waiter."""
        for session in self.sessions.values():
            session.end(Goodbye.STOPPED, "the server is stopping; it may be started again")
        self._condition.stop()

    def tell(self, text: str, *, level: str = "info", keep: bool = True) -> None:
        """Log an event and show it on the status page.

        `keep=False` leaves it out of the journal: strangers must not be able to fill the disk.
        """
        event = Event(datetime.now(UTC).isoformat(timespec="seconds"), level, text)
        self.events.appendleft(event)
        if keep:
            self.journal.write(event=event)
        log.log(logging.WARNING if level == "warning" else logging.INFO, "%s", text)

    # Orders

    async def hold(
        self,
        states: Mapping[str, NDArray[Any]],
        quorum: int,
        cohort: Sequence[MaskingKey] = (),
    ) -> Exchange:
        """Send the questions of one exchange, wait for the answers, and return the exchange."""
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
        """Return whether the open exchange can end."""
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
        """Start a self-learning phase of `env_steps`, or less if a member's budget is smaller.

        A member that is still in a phase continues it. The journal gets `facts` in the same
        transaction as the start of the phases.
        """
        begun = []
        for name in names:
            member, affordable = self.members[name], min(env_steps, self.learnable(name))
            if not member.learning and affordable > 0:
                member.phase += 1
                member.phase_size, member.phase_env_steps = affordable, 0
                begun.append(member)
        self.journal.write(facts=facts, members=begun)  # before any member gets its order
        for member in begun:
            self._order_learning(member.name)

    def learnable(self, name: str) -> int:
        """Return the env steps that a member may still spend on self-learning."""
        left = self.members[name].left(self.env_steps_per_member)
        return int(left - self.reserved.get(name, Fraction(0)))

    def end_round(self) -> None:
        """Free the reserved env steps and report idle members to `on_idle`."""
        self.reserved = {}
        for name in self.present():
            if not self.members[name].learning:
                self.on_idle(self.members[name])

    def _order_learning(self, name: str) -> None:
        member = self.members[name]
        whole = self.settings.mode == "rounds"
        chunk = member.phase_size if whole else self.settings.chunk_env_steps
        # An absent member gets this order from `admit` when it reconnects.
        if (session := self.sessions.get(name)) is not None:
            self._orders.send_learning(session, member, chunk)

    def _send_open_question(self, session: Session) -> None:
        """Send the open question to a member that connected or has answered an older one."""
        exchange = self._exchange
        if exchange is None or exchange.cohort:  # a masked cohort is fixed when its exchange starts
            return
        if session.name in exchange.waiting and not session.asked:
            self._orders.send_question([session], exchange)

    def _is_here(self, name: str) -> bool:
        return name in self.sessions and not self.members[name].over

    # Reports

    def report(self, session: Session, report: Report) -> None:
        """Process a report of a member; raise WireError if its counts are impossible."""
        if self.sessions.get(session.name) is not session:
            return  # the session was replaced or expelled
        member = self.members[session.name]
        if not report.skipped_improvements <= report.applied_improvements <= self.improvements:
            raise WireError(
                f"the report says {report.applied_improvements} improvements applied, "
                f"{report.skipped_improvements} of them skipped; {self.improvements} exist"
            )
        member.applied_improvements = report.applied_improvements
        member.skipped_improvements = report.skipped_improvements
        if report.phase:
            # Progress in an unfinished phase is not written: the member reports it again.
            if member.has_learned(report.phase, report.phase_env_steps) and not member.learning:
                self.journal.write(members=[member])
                self.on_idle(member)
            self._condition.notify()
        elif not member.finished:  # the last order of a finished member asks for no values
            self._process_answer(session, member, report)
            if self._is_settled():
                self._condition.notify()

    def _process_answer(self, session: Session, member: MemberRecord, report: Report) -> None:
        exchange = self._exchange
        if key_of(report.id) == (self._orders.epoch, session.asked):
            session.asked = 0
        if exchange is None or key_of(report.id) != (self._orders.epoch, exchange.number):
            member.late_answers += 1
            self._send_open_question(session)
            return
        if member.name not in exchange.waiting:
            return  # a repeated answer
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
            f"row; the last error: {why}",
            level="warning",
        )
        self.expel(session, f"quarantined: {why}")

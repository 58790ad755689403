"""The roster: the members of a federation, the orders sent to them, and their reports.

The roster belongs to one event loop. A member always has a `MemberRecord`, and a `Session` while it
is connected.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from numpy.typing import NDArray

from fedhql.remote.server.catch_up import CatchUpWindow
from fedhql.remote.server.deadlines import Work
from fedhql.remote.server.exchange import Exchange
from fedhql.remote.server.journal import Journal, MemberRecord
from fedhql.remote.server.membership import Membership
from fedhql.remote.server.orders import Orders
from fedhql.remote.server.service_settings import ServiceSettings
from fedhql.remote.server.session import UNKNOWN, Peer, Session
from fedhql.remote.server.status import LatencyRecord
from fedhql.remote.wire import WireError, key_of
from fedhql.remote.wire_pb2 import Cause, FromServer, Goodbye, MaskingKey, Notice, Report, Welcome


class Roster(Membership):
    """All members. `hold` and `learn` give them work while they connect and disconnect."""

    def __init__(
        self,
        settings: ServiceSettings,
        journal: Journal,
        *,
        action_count: int,
        env_steps_per_member: int,
        question_bytes: int = 0,
        least_receive_bytes: int = 0,
        secure_value_bound: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Load the members from the journal and start a new epoch.

        `question_bytes` is the size of the largest question, and `least_receive_bytes` that of the
        largest message with one improvement. With a `secure_value_bound`, members mask their
        answers, and the server sees only sums.
        """
        super().__init__(settings, journal, clock)
        self.secure_value_bound = secure_value_bound
        self.least_receive_bytes = least_receive_bytes
        self.latencies = LatencyRecord()
        self.env_steps_per_member = env_steps_per_member
        epoch: int = (journal.fact("epoch") or 0) + 1
        journal.write(facts={"epoch": epoch, "stopped": None})
        self._action_count = action_count
        self.catch_up_window = CatchUpWindow(
            journal.improvements(),
            journal.fact("improvements") or 0,
            settings.catch_up_improvements,
        )
        self._orders = Orders(epoch, self.catch_up_window, question_bytes)
        self.server_env_steps: int = journal.fact("server_env_steps") or 0
        self._exchange: Exchange | None = None
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
        peer: Peer = UNKNOWN,
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
            member.replaced_connections += 1
            before.end(Goodbye.REPLACED, "the same member has connected again", Cause.SAME_NAME)
            self.tell(
                f"{name} connected from {peer.address} while it was connected from "
                f"{before.peer.address}; the older connection ends",
                level="warning",
            )
        member.connections += 1
        member.applied_improvements = applied
        session = self.sessions[name] = Session(name, applied, peer, heard_at=datetime.now(UTC))
        session.skipped = 0 if is_new else member.reported_skips
        session.send(FromServer(welcome=welcome(applied)))
        member.late_with = [work for work in member.late_with if work != Work.ANSWER]
        self.write(members=[member])
        self.tell(f"{name} connected{peer.in_words}")
        self._send_open_work(session)
        self._condition.notify()
        return session

    def _send_open_work(self, session: Session) -> None:
        """Send a member its improvements, piece by piece, and then what it has to do."""
        member = self.members[session.name]
        if not self._has_caught_up(session):
            return
        self._came(session, Work.CATCHING_UP)
        if member.finished:
            self._send_last_order(session, "the member has finished", Cause.FEDERATION_OVER)
            return
        if member.learning:
            self._order_learning(session.name)
        else:
            self.on_idle(member)
        self._send_open_question(session)

    def _has_caught_up(self, session: Session) -> bool:
        """Return whether the member can get work; otherwise a piece is on its way to it."""
        if self._orders.catch_up(session):
            return True
        self._expect(session, Work.CATCHING_UP)
        return False

    def _free_number(self, name: str) -> int:
        """Return the index in service.members, or the next free number if that one is taken."""
        listed, taken = self.settings.members, {m.number for m in self.members.values()}
        number = listed.index(name) if listed else len(taken)
        return max(taken) + 1 if number in taken else number

    def set_message_sizes(self, question_bytes: int, least_receive_bytes: int) -> None:
        self.least_receive_bytes = least_receive_bytes
        self._orders.question_bytes = question_bytes

    def change(self, settings: ServiceSettings) -> None:
        super().change(settings)
        self.catch_up_window.most = settings.catch_up_improvements

    def dismiss(self, name: str, detail: str, cause: Cause = Cause.BUDGET_SPENT) -> None:
        """Mark a member as finished and send it its last improvements and a Goodbye."""
        member = self.members[name]
        member.finished = True
        self.write(members=[member])
        session = self.sessions.get(name)
        if session is not None and self._has_caught_up(session):
            self._send_last_order(session, detail, cause)
        self.tell(f"{name} has finished: {detail}")

    def _send_last_order(self, session: Session, detail: str, cause: Cause) -> None:
        """Send the last improvements and a Goodbye. The member then ends the connection."""
        self._orders.send_improvements(session)
        goodbye = Goodbye(reason=Goodbye.FINISHED, detail=detail, cause=cause)
        session.send(FromServer(goodbye=goodbye))

    def parted(self, session: Session) -> None:
        """Record that a finished member has saved everything it was sent."""
        member = self.members[session.name]
        if member.finished and self.sessions.get(session.name) is session:
            member.parted = True
            self.write(members=[member])
            self._condition.notify()

    # Orders

    async def hold(
        self,
        states: Mapping[str, NDArray[Any]],
        quorum: int,
        cohort: Sequence[MaskingKey] = (),
        *,
        act: bool = False,
    ) -> Exchange:
        """Send the questions of one exchange, wait for the answers, and return the exchange.

        With `act`, members also say how their agents act.
        """
        exchange = Exchange(self._orders.next_number(), states, quorum, set(states), cohort, act)
        self._exchange, begun = exchange, self._clock()
        ready = [self.sessions[name] for name in self._askable(exchange)]
        self._ask([session for session in ready if not session.asked], exchange)
        try:
            with self.waits.waiting("answers", lambda: sorted(exchange.waiting)):
                await self.wait_until(self._is_settled, self.settings.exchange_deadline_seconds)
        finally:
            self._exchange = None
        self.latencies.add(self._clock() - begun)
        for name in sorted(exchange.waiting):
            session = self.sessions.get(name)
            if session is not None and self._is_awaited(session, exchange):
                self.miss(session, Work.ANSWER)
        return exchange

    def _askable(self, exchange: Exchange) -> list[str]:
        """Return the members that may be asked now. A masked cohort is fixed and asked as it is."""
        at_least = len(exchange.states) if exchange.cohort else exchange.quorum
        return self.available(at_least, exchange.states)

    def _ask(self, sessions: Sequence[Session], exchange: Exchange) -> None:
        ready = [session for session in sessions if self._has_caught_up(session)]
        self._orders.send_question(ready, exchange)
        for session in ready:
            self._expect(session, Work.ANSWER)

    def _is_settled(self) -> bool:
        """Return whether the open exchange can end."""
        exchange = self._exchange
        if exchange is None:
            return False
        here = (self.sessions[name] for name in exchange.waiting if self._is_here(name))
        return exchange.is_settled(any(self._is_awaited(session, exchange) for session in here))

    def _is_awaited(self, session: Session, exchange: Exchange) -> bool:
        late = Work.ANSWER in self.members[session.name].late_with
        return session.asked == exchange.number and not late

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
        self.write(facts=facts, members=begun)  # before any member gets its order
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
        # An absent member gets this order when it reconnects, and a busy one when it has caught up.
        session = self.sessions.get(name)
        if session is not None and self._has_caught_up(session):
            self._orders.send_learning(session, member, chunk)
            self._expect(session, Work.LEARNING)

    def _send_open_question(self, session: Session) -> None:
        """Send the open question to a member that connected or has answered an older one."""
        exchange = self._exchange
        if exchange is None or exchange.cohort:  # a masked cohort is fixed when its exchange starts
            return
        if session.name not in exchange.waiting or session.asked:
            return
        if session.name in self._askable(exchange):
            self._ask([session], exchange)

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
        if report.skipped_improvements > session.skipped:
            member.skipped_improvements += report.skipped_improvements - session.skipped
            session.skipped = member.reported_skips = report.skipped_improvements
            self.write(members=[member])  # a restart must not lower the count
            text = f"{member.name} skipped improvements that are no longer kept"
            self.tell(f"{text}: {member.skipped_improvements} in all", level="warning")
        number = report.id.number if report.id.epoch == self._orders.epoch else 0
        if number and number == session.piece:
            session.piece = 0
            self._send_open_work(session)
            self._condition.notify()
        elif report.phase:
            self._process_learning(session, member, report)
            self._condition.notify()
        elif not member.finished:  # the last order of a finished member asks for no values
            self._process_answer(session, member, report)
            if self._is_settled():
                self._condition.notify()

    def _process_learning(self, session: Session, member: MemberRecord, report: Report) -> None:
        if not member.has_learned(report.phase, report.phase_env_steps):
            return
        in_time = Work.LEARNING not in member.late_with
        self._came(session, Work.LEARNING)
        if in_time:
            self._did_work(session)
        if member.learning and not member.finished:
            self._expect(session, Work.LEARNING)
            return  # progress in an unfinished phase is not written: the member reports it again
        self.write(members=[member])
        self.on_idle(member)

    def _process_answer(self, session: Session, member: MemberRecord, report: Report) -> None:
        exchange = self._exchange
        was_asked = session.asked > 0 and key_of(report.id) == (self._orders.epoch, session.asked)
        if was_asked:
            session.asked = 0
            self._came(session, Work.ANSWER)
        if exchange is None or key_of(report.id) != (self._orders.epoch, exchange.number):
            if was_asked:
                member.late_answers += 1
                self.write(members=[member])
            self._send_open_question(session)
            return
        if member.name not in exchange.waiting:
            return  # a repeated answer
        bound = self.settings.value_bound
        try:
            exchange.take(member.name, report, action_count=self._action_count, bound=bound)
        except WireError as error:
            self._refuse_answer(session, member, report, error)
            return
        member.refused_in_a_row = 0
        self._did_work(session)

    def _refuse_answer(
        self, session: Session, member: MemberRecord, report: Report, error: WireError
    ) -> None:
        member.refused_answers += 1
        member.refused_in_a_row += 1
        left = self.settings.quarantine_after - member.refused_in_a_row
        if left <= 0:
            member.quarantined = str(error)
        self.write(members=[member])
        self.tell(f"{member.name}: answer refused: {error}", level="warning")
        if session.peer.gets_notices:
            notice = Notice(id=report.id, cause=error.cause, detail=str(error), left=max(left, 0))
            session.send(FromServer(notice=notice))
        if left <= 0:
            self.tell(
                f"{member.name} is quarantined after {member.refused_in_a_row} refused answers in "
                f"a row; the last error: {error}",
                level="warning",
            )
            self.expel(session, f"quarantined: {error}", Cause.QUARANTINED)

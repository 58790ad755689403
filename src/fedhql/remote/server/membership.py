"""Who belongs to a federation, who is connected, and who is late."""

import time
from collections.abc import Callable, Container
from datetime import UTC, datetime
from typing import Any, Literal

from fedhql.errors import FedHQLError, JournalError
from fedhql.remote.server.condition import Condition
from fedhql.remote.server.deadlines import Probations, Waits, Work
from fedhql.remote.server.event_log import EventLog
from fedhql.remote.server.journal import Journal, MemberRecord
from fedhql.remote.server.service_settings import ServiceSettings
from fedhql.remote.server.session import Session
from fedhql.remote.wire_pb2 import Cause, Goodbye

RETRY_SECONDS = 5.0  # after which members may look for a server that was stopped


class Membership:
    """The members of a federation, from its journal, and their sessions."""

    def __init__(
        self,
        settings: ServiceSettings,
        journal: Journal,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self.journal, self._clock = settings, journal, clock
        self.members: dict[str, MemberRecord] = journal.members()
        self.sessions: dict[str, Session] = {}
        self.log = EventLog(journal, self.write)
        self.tell = self.log.tell
        self.waits = Waits(clock)
        self.failure: FedHQLError | None = None  # why the server must stop
        self._condition = Condition(clock)
        self.wait_until = self._condition.wait_until
        self._probations = Probations(clock)

    def write(self, **content: Any) -> None:
        """Write to the journal as `Journal.write` does. If that fails, the server stops.

        Then all sessions have ended, so nothing can be sent that relies on what was not written.
        """
        if self.failure is not None and not self.journal.is_usable:
            return
        try:
            self.journal.write(**content)
        except JournalError as error:
            self.fail(error)

    def leave(self, session: Session, why: str) -> None:
        """Remove a session that has ended."""
        if self.sessions.get(session.name) is not session:  # a newer session may have replaced it
            return
        del self.sessions[session.name]
        member = self.members[session.name]
        if session.heard_at is not None:
            member.last_heard = session.heard_at.isoformat(timespec="seconds")
        self.write(members=[member])
        self.tell(f"{session.name} {'has left' if member.finished else 'is away'}: {why}")
        self._condition.notify()

    def expel(
        self,
        session: Session,
        why: str,
        cause: Cause,
        reason: Goodbye.Reason = Goodbye.REFUSED,
        *,
        retry_after_seconds: float = 0.0,
    ) -> None:
        """Disconnect a member at once and ignore its later messages, even if it never reads."""
        session.end(reason, why, cause, retry_after_seconds=retry_after_seconds)
        self.leave(session, why)

    def present(self) -> list[str]:
        """Return the names of the members that can get work now, in order of number."""
        # A copy: the status page's threads call this while members connect.
        here = [member for name, member in list(self.members.items()) if self._is_here(name)]
        return [member.name for member in sorted(here, key=lambda member: member.number)]

    def available(self, at_least: int = 0, among: Container[str] | None = None) -> list[str]:
        """Return the names of the present members that are not late with anything.

        Members that were late before are left out for a while, unless `at_least` needs them and the
        federation is not ending.
        """
        here = [name for name in self.present() if among is None or name in among]
        ready = [name for name in here if self.is_ready(name)]
        rested = [name for name in ready if not self._probations.pauses(name)]
        return rested if len(rested) >= at_least or self.is_ending else ready

    def needs(self, setting: Literal["start_with", "quorum"], purpose: str) -> Callable[[], str]:
        """Return a function that says how many members are needed, and how many are there."""

        def told() -> str:
            needed, here = getattr(self.settings, setting), len(self.present())
            return f"{needed} members are needed {purpose} (service.{setting}), {here} there"

        return told

    @property
    def is_ending(self) -> bool:
        """Whether members have finished. Then those that are left may never make a quorum."""
        return any(member.finished for member in list(self.members.values()))

    def takes_part(self, name: str) -> bool:
        """Whether a known member is still part of the federation."""
        listed = self.settings.members
        return not self.members[name].over and (not listed or name in listed)

    def is_ready(self, name: str) -> bool:
        """Whether a member is connected, late with nothing, and not catching up."""
        session = self.sessions.get(name)
        return session is not None and not session.piece and not self.members[name].late_with

    def _is_here(self, name: str) -> bool:
        return name in self.sessions and self.takes_part(name)

    def release(self, name: str) -> None:
        """Release a member from quarantine, on request of the operator."""
        member = self.members[name]
        member.quarantined, member.refused_in_a_row = "", 0
        self.write(members=[member])
        self.tell(f"{name} is released from quarantine")

    def change(self, settings: ServiceSettings) -> None:
        """Use new settings from now on, and disconnect members that are no longer listed."""
        self.settings = settings
        for session in list(self.sessions.values()):
            if settings.members and session.name not in settings.members:
                why = f"{session.name} is no longer among the members of this federation"
                self.expel(session, why, Cause.NOT_LISTED)
        self._condition.notify()

    def stop(self) -> None:
        """Disconnect all members, so that they retry later, and raise Stopped in every waiter."""
        if self.failure is not None:
            return
        detail = "the server is stopping; it may be started again"
        self._end_all(Goodbye.STOPPED, detail, Cause.SERVER_STOPPING)
        self._note_stop("by its operator")

    def fail(self, error: FedHQLError) -> None:
        """Tell all members why the server must stop, and raise Stopped in every waiter.

        Members end if the error is the federation's. They retry if it is the server machine's.
        """
        if self.failure is not None:
            return
        self.failure = error
        reason = Goodbye.STOPPED if isinstance(error, JournalError) else Goodbye.REFUSED
        self._end_all(reason, f"the federation stops: {error}", Cause.SERVER_FAILED)
        self.tell(f"the federation stops: {error}", level="warning")
        self._note_stop(str(error))

    def _end_all(self, reason: Goodbye.Reason, detail: str, cause: Cause) -> None:
        retry = RETRY_SECONDS if reason == Goodbye.STOPPED else 0.0
        for session in self.sessions.values():
            session.end(reason, detail, cause, retry_after_seconds=retry)
        self._condition.stop()

    def _note_stop(self, why: str) -> None:
        time_ = datetime.now(UTC).isoformat(timespec="seconds")
        self.write(facts={"stopped": {"time": time_, "why": why}})

    # Deadlines

    def _expect(self, session: Session, work: Work) -> None:
        session.due[work] = self._clock() + work.seconds(self.settings)

    def check_deadlines(self) -> None:
        """Find members that are late, and log a wait that takes long. Called regularly."""
        now = self._clock()
        for session in list(self.sessions.values()):
            for work in [work for work, due in session.due.items() if due <= now]:
                self.miss(session, work)
        if (line := self.waits.to_log()) is not None:
            self.tell(line, level="warning", keep=False)
        self._condition.notify()  # a member may be available again

    def miss(self, session: Session, work: Work) -> None:
        """Record a missed deadline: nobody waits for the member until it reports.

        After `disconnect_after` of them in a row the member is disconnected.
        """
        member, settings = self.members[session.name], self.settings
        seconds = work.seconds(settings)
        session.missed += 1
        if work is Work.ANSWER:
            member.unanswered_questions += 1
        else:
            member.missed_phases += 1
        if work not in member.late_with:
            member.late_with.append(work)
        self._expect(session, work)
        self._probations.strike(session.name, seconds)
        self.write(members=[member])
        left = settings.disconnect_after - session.missed
        self.tell(
            f"{session.name} is late with {work}: nothing came for {seconds:g} s; the others go on "
            f"without it (after {max(left, 0)} more it is disconnected)",
            level="warning",
        )
        if left <= 0:
            why = f"it missed {session.missed} deadlines in a row, the last with {work}"
            self.expel(
                session, why, Cause.MISSED_DEADLINES, Goodbye.STOPPED, retry_after_seconds=seconds
            )
        self._condition.notify()

    def _came(self, session: Session, work: Work) -> None:
        """Record that a member has done what it may have been late with."""
        session.due.pop(work, None)
        member = self.members[session.name]
        if work in member.late_with:
            member.late_with.remove(work)
            self.write(members=[member])
            self.tell(f"{session.name} is no longer late with {work}")
            self._condition.notify()

    def _did_work(self, session: Session) -> None:
        session.missed = 0
        self._probations.did_work(session.name)

"""The members and waits of a roster, as operators see them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedhql.remote.server.journal import MemberRecord
from fedhql.remote.server.roster import Roster
from fedhql.remote.server.session import Session
from fedhql.remote.server.status import MemberStatus, WaitStatus


def wait_status(roster: Roster) -> WaitStatus | None:
    """Return what the server waits for now; None if it works."""
    wait = roster.waits.current
    if wait is None:
        return None
    since = wait.since.isoformat(timespec="seconds")
    return WaitStatus(wait.what(), wait.names(), since, roster.waits.seconds(wait))


def members_status(roster: Roster, waiting: WaitStatus | None) -> list[MemberStatus]:
    """Return all members in order of number, and after them listed members that never came."""
    return statuses(
        roster.members, roster.settings.members, sessions=roster.sessions, waiting=waiting
    )


def statuses(
    members: Mapping[str, MemberRecord],
    listed: Sequence[str],
    *,
    sessions: Mapping[str, Session] | None = None,
    waiting: WaitStatus | None = None,
) -> list[MemberStatus]:
    """Return the status of each member. `sessions` is None where no server runs."""
    known = sorted(list(members.values()), key=lambda member: member.number)  # noqa: C414, a copy
    found = [_status(member, sessions, waiting) for member in known]
    found = [
        replace(member, state="removed")
        if listed and member.name not in listed and member.state in ("away", "unknown")
        else member
        for member in found
    ]
    return found + [MemberStatus(name, "never came") for name in listed if name not in members]


def _status(
    member: MemberRecord, sessions: Mapping[str, Session] | None, waiting: WaitStatus | None
) -> MemberStatus:
    session = None if sessions is None else sessions.get(member.name)
    status = MemberStatus(
        name=member.name,
        state=_state(member, session, server_runs=sessions is not None),
        own_env_steps=member.own_env_steps,
        consumed_env_steps=member.account.consumed,
        applied_improvements=member.applied_improvements,
        skipped_improvements=member.skipped_improvements,
        refused_answers=member.refused_answers,
        late_answers=member.late_answers,
        unanswered_questions=member.unanswered_questions,
        missed_phases=member.missed_phases,
        reconnects=max(member.connections - 1, 0),
        replaced_connections=member.replaced_connections,
        late_with=", ".join(member.late_with) if session is not None else "",
        waited_for_since=waiting.since if waiting and member.name in waiting.names else "",
        last_heard=member.last_heard,
        quarantined=member.quarantined,
    )
    if session is None:
        return status
    peer, heard = session.peer, session.heard_at
    expires = peer.certificate_expires
    return replace(
        status,
        last_heard=heard.isoformat(timespec="seconds") if heard is not None else "",
        address=peer.address,
        software=peer.software,
        protocol=peer.protocol,
        certificate_expires=expires.isoformat(timespec="seconds") if expires is not None else "",
    )


def _state(member: MemberRecord, session: Session | None, *, server_runs: bool) -> str:
    if member.quarantined:
        return "quarantined"
    if member.finished:
        return "finished"
    if not server_runs:
        return "unknown"
    if session is None:
        return "away"
    return "late" if member.late_with else "connected"

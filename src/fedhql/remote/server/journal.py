"""The server's durable state in SQLite. After `kill -9` the server continues from its last step.

Each finished step is one transaction: its improvement, the position of the server's environments
after it, and the cost charged to each member.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, field, fields
from fractions import Fraction
from pathlib import Path
from typing import Any

from fedhql.errors import JournalError
from fedhql.federation import Account
from fedhql.remote.server.status import Event
from fedhql.remote.wire import WireError
from fedhql.remote.wire_pb2 import Improvement

SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS members (name TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS improvements (number INTEGER PRIMARY KEY, message BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, file TEXT NOT NULL, round INTEGER NOT NULL,
                                 line TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, time TEXT NOT NULL, level TEXT NOT NULL,
                                   text TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS rows_of_rounds ON rows (file, round);
"""
EVENTS_KEPT = 10_000


@dataclass
class MemberRecord:
    """The durable record of one member, across connections and server restarts."""

    name: str
    number: int  # position in service.members, or in the order of first connection
    joined_at: int = 0  # improvements before its first connection; it never gets these
    own_env_steps: int = 0
    share: str = "0"  # env steps of the server charged to it, an exact fraction
    phase: int = 0  # the number of the last self-learning phase ordered
    phase_size: int = 0  # the env steps in that phase
    phase_env_steps: int = 0  # the env steps of it that the member has reported
    applied_improvements: int = 0
    skipped_improvements: int = 0  # over all its states; never falls
    reported_skips: int = 0  # as the member counts them
    refused_answers: int = 0
    refused_in_a_row: int = 0
    late_answers: int = 0
    unanswered_questions: int = 0
    missed_phases: int = 0  # deadlines of self-learning, or of catching up, that it missed
    late_with: list[str] = field(default_factory=list)  # of `Work`; nobody waits for the member
    connections: int = 0
    replaced_connections: int = 0
    evaluations: dict[str, int] = field(default_factory=dict)  # at each moment, so far
    best_mean_returns: dict[str, float] = field(default_factory=dict)  # the best of these
    quarantined: str = ""  # the reason
    finished: bool = False
    parted: bool = False  # it has confirmed that it saved everything
    last_heard: str = ""  # when its last connection ended; UTC, ISO 8601

    @property
    def over(self) -> bool:
        """True if the member takes no further part in the federation."""
        return self.finished or bool(self.quarantined)

    @property
    def account(self) -> Account:
        return Account(self.own_env_steps, Fraction(self.share))

    def charge(self, server_env_steps: int, members: int) -> None:
        """Charge the member for server steps that `members` members pay for together."""
        self.share = str(self.account.charged(server_env_steps, members).server_share)

    @property
    def learning(self) -> bool:
        return self.phase_env_steps < self.phase_size

    def left(self, env_steps_per_member: int) -> Fraction:
        """Return the env steps left in its budget after its current phase."""
        return self.account.left(env_steps_per_member) - (self.phase_size - self.phase_env_steps)

    def has_learned(self, phase: int, phase_env_steps: int) -> bool:
        """Charge the newly reported env steps; return whether there were any.

        A report may come twice or late. Each env step is charged once. Raise WireError for a phase
        that was not ordered and for more env steps than were ordered.
        """
        if phase > self.phase:
            raise WireError(f"a report of phase {phase}; ordered: {self.phase}")
        if phase == self.phase and phase_env_steps > self.phase_size:
            raise WireError(
                f"a report of {phase_env_steps} env steps in phase {phase}; ordered: "
                f"{self.phase_size}"
            )
        if phase < self.phase or phase_env_steps <= self.phase_env_steps:
            return False
        self.own_env_steps += phase_env_steps - self.phase_env_steps
        self.phase_env_steps = phase_env_steps
        return True


class Journal:
    """The journal file. It has one writer and belongs to one thread."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Open the journal. `read_only` also works while a server writes to the file."""
        if read_only:
            self._database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
            return
        self._database = sqlite3.connect(path, isolation_level=None)
        self.is_usable = True
        # FULL: data is on disk before it is sent to a member, so a power failure cannot lose it.
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.executescript(SCHEMA)

    def fact(self, name: str) -> Any:
        """Return the value of a fact; None if it was never written."""
        row = self._database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def members(self) -> dict[str, MemberRecord]:
        """Return the records by name, in order of number. Fields of other versions are ignored."""
        found = self._database.execute("SELECT record FROM members").fetchall()
        known = {field.name for field in fields(MemberRecord)}
        records = [json.loads(text) for (text,) in found]
        members = [MemberRecord(**{k: v for k, v in r.items() if k in known}) for r in records]
        return {member.name: member for member in sorted(members, key=lambda m: m.number)}

    def improvements(self) -> list[Improvement]:
        found = self._database.execute("SELECT message FROM improvements ORDER BY number")
        return [Improvement.FromString(message) for (message,) in found]

    def events(self, count: int) -> list[Event]:
        """Return the last `count` events, newest first."""
        query = "SELECT time, level, text FROM events ORDER BY id DESC LIMIT ?"
        return [Event(*row) for row in self._database.execute(query, (count,))]

    def lines(self, file: str, from_round: int = 0) -> list[str]:
        query = "SELECT line FROM rows WHERE file = ? AND round >= ? ORDER BY id"
        return [line for (line,) in self._database.execute(query, (file, from_round))]

    def write(
        self,
        *,
        facts: Mapping[str, Any] | None = None,
        members: Iterable[MemberRecord] = (),
        improvement: Improvement | None = None,
        kept_from: int = 0,
        rows: tuple[str, int, Sequence[str]] | None = None,
        adds_rows: bool = False,
        event: Event | None = None,
    ) -> None:
        """Write everything in one transaction.

        `rows` holds a file name, a round and lines of that round. They replace those of this round
        and later ones, unless `adds_rows`. Improvements with numbers
        below `kept_from` are deleted.
        """
        if not self.is_usable:
            raise JournalError("the journal cannot be written any more")
        execute = self._database.execute
        with self._transaction():
            for name, value in (facts or {}).items():
                execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, json.dumps(value)))
            for member in members:
                record = json.dumps(asdict(member))
                execute("INSERT OR REPLACE INTO members VALUES (?, ?)", (member.name, record))
            if improvement is not None:
                message = improvement.SerializeToString()
                execute("INSERT INTO improvements VALUES (?, ?)", (improvement.number, message))
                execute("DELETE FROM improvements WHERE number < ?", (kept_from,))
            if rows is not None:
                file, of_round, lines = rows
                if not adds_rows:  # after a restart, an unfinished round writes its lines again
                    execute("DELETE FROM rows WHERE file = ? AND round >= ?", (file, of_round))
                for line in lines:
                    execute(
                        "INSERT INTO rows (file, round, line) VALUES (?, ?, ?)",
                        (file, of_round, line),
                    )
            if event is not None:
                insert = "INSERT INTO events (time, level, text) VALUES (?, ?, ?)"
                last = execute(insert, astuple(event)).lastrowid
                execute("DELETE FROM events WHERE id <= ?", ((last or 0) - EVENTS_KEPT,))

    def close(self) -> None:
        self.is_usable = False
        self._database.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit what the block executes, or nothing. Raise JournalError if the disk refuses."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            yield
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            self.is_usable = False  # what follows may rely on what is missing
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise JournalError(
                f"the journal cannot be written: {error}; the last finished step is safe: make "
                "room or repair the disk, then run the same command"
            ) from error
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

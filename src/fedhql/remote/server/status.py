"""The status of a running federation: counts and times, without any answers."""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

# Upper bounds in seconds. One more bucket holds longer durations.
LATENCY_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
# Operators are shown a wait when it has lasted this long. Most exchanges take milliseconds.
SHOW_WAIT_SECONDS = 2.0


@dataclass(frozen=True)
class Event:
    """An event in the operator's log."""

    time: str  # UTC, ISO 8601
    level: str  # info, warning
    text: str


@dataclass(frozen=True)
class MemberStatus:
    """The status of one member."""

    name: str
    # connected, late, away, never came, removed (no longer listed), quarantined, finished;
    # unknown, where no server is asked
    state: str
    own_env_steps: int = 0
    consumed_env_steps: float = 0.0  # its own plus its share of the server's
    applied_improvements: int = 0
    skipped_improvements: int = 0
    refused_answers: int = 0
    late_answers: int = 0
    reconnects: int = 0
    unanswered_questions: int = 0
    missed_phases: int = 0
    replaced_connections: int = 0
    late_with: str = ""  # what nobody waits for any more
    waited_for_since: str = ""  # times are UTC, ISO 8601; empty: not at all, or not known
    last_heard: str = ""
    address: str = ""
    software: str = ""
    protocol: str = ""
    certificate_expires: str = ""
    quarantined: str = ""  # the reason


@dataclass(frozen=True)
class WaitStatus:
    """What the server waits for."""

    what: str
    names: Sequence[str]
    since: str  # UTC, ISO 8601
    seconds: float = 0.0  # how long it has lasted

    @property
    def is_shown(self) -> bool:
        return self.seconds >= SHOW_WAIT_SECONDS


@dataclass(frozen=True)
class LatencyStatus:
    """The durations of exchanges, from sending the question to the end of the wait for answers."""

    count: int
    total_seconds: float
    buckets: Sequence[tuple[float, int]]  # upper bound, number of durations up to it
    p50_seconds: float | None  # of the last 1,000 exchanges
    p99_seconds: float | None


@dataclass(frozen=True)
class FederationStatus:
    """The status of the whole federation at one moment."""

    federation: str
    environment: str
    mode: str  # rounds, continuous
    stage: str  # waiting for members, learning, evaluating, federating, finished
    round: int
    improvements: int
    quorum: int
    env_steps_per_member: int
    server_env_steps: int
    uptime_seconds: float
    members: Sequence[MemberStatus]
    exchanges: LatencyStatus
    spread: float | None  # of Q over the members, in the last round
    td_error: float | None
    loss: float | None
    events: Sequence[Event]  # newest first
    waiting: WaitStatus | None = None
    refused_connections: Mapping[str, int] = field(default_factory=dict)  # by cause
    software: str = ""
    time: str = ""  # of this status; UTC, ISO 8601
    members_expected: int = 0  # the listed members, or the known ones if none is listed
    exchange_deadline_seconds: float | None = None


@dataclass
class LatencyRecord:
    """Collects durations in bounded memory."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS) + 1))
    total_seconds: float = 0.0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=1_000))

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(LATENCY_BOUNDS, seconds)] += 1
        self.total_seconds += seconds
        self.recent.append(seconds)

    def status(self) -> LatencyStatus:
        recent = list(self.recent)
        p50, p99 = np.percentile(recent, (50, 99)).tolist() if recent else (None, None)
        cumulative = np.cumsum(self.counts).tolist()
        buckets = tuple(zip((*LATENCY_BOUNDS, float("inf")), cumulative, strict=True))
        return LatencyStatus(cumulative[-1], self.total_seconds, buckets, p50, p99)


def printable(text: str, most: int | None = None) -> str:
    """Return text from a peer, cut to `most` characters, with control characters escaped.

    The result cannot start a new log line or move the cursor of a terminal.
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:most])

"""What a running federation looks like from outside: counts and times, never an answer."""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

# Upper bounds in seconds; one more bucket holds the rest.
LATENCY_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


@dataclass(frozen=True)
class Event:
    """Something an operator may want to know."""

    time: str  # UTC, ISO 8601
    level: str  # info, warning
    text: str


@dataclass(frozen=True)
class MemberStatus:
    """One member, as the server knows it."""

    name: str
    state: str  # connected, away, quarantined, finished
    own_env_steps: int
    consumed_env_steps: float  # own and the share of the server's
    applied_improvements: int
    skipped_improvements: int
    refused_answers: int
    late_answers: int
    reconnects: int


@dataclass(frozen=True)
class LatencyStatus:
    """Of exchanges: from a question's sending to the last answer that was waited for."""

    count: int
    total_seconds: float
    buckets: Sequence[tuple[float, int]]  # upper bound, how many not above it
    p50_seconds: float | None  # of the last thousand
    p99_seconds: float | None


@dataclass(frozen=True)
class FederationStatus:
    """All of it, at one moment."""

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
    spread: float | None  # of Q over members, in the last round
    td_error: float | None
    loss: float | None
    events: Sequence[Event]  # newest first


@dataclass
class LatencyRecord:
    """Durations as they come, in bounded memory."""

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
    """What somebody else wrote, cut and escaped: it begins no line and moves no cursor."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:most])

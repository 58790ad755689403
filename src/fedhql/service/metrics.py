"""The status of a running federation as Prometheus metrics.

A counter never goes down while the server runs. Each counter either continues from the journal
after a restart or begins again at 0. A value that can go down is a gauge.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from fedhql.remote.server.status import FederationStatus, MemberStatus
from fedhql.remote.wire_pb2 import Cause

if TYPE_CHECKING:  # an optional package
    from prometheus_client.core import Metric

STATES = {
    "connected": "1 if the member is connected and not late, else 0.",
    "late": "1 if the member is connected but missed a deadline, so that nobody waits for it.",
    "away": "1 if the member has disconnected and takes part in the federation, else 0.",
    "never came": "1 if the member is listed and has never connected, else 0.",
    "quarantined": "1 if the member is quarantined, else 0.",
    "finished": "1 if the member has finished, else 0.",
}
# The server can crash before it has written the newest steps of a phase, and a member can return
# with an older state. The value is then lower until the member has caught up.
MEMBER_GAUGES = {
    "own_env_steps": "Env steps that the member's agent took itself.",
    "consumed_env_steps": "Env steps charged to the member: its own and its share of the server's.",
    "applied_improvements": "Improvements in the member's present state.",
}
MEMBER_COUNTERS = {
    "skipped_improvements": "Improvements that the member skipped.",
    "refused_answers": "Answers of the member that the server refused.",
    "late_answers": "Answers of the member that came after their exchange had ended.",
    "unanswered_questions": "Questions that the member did not answer by the deadline.",
    "missed_phases": "Deadlines of self-learning or catching up that the member missed.",
    "reconnects": "Reconnections of the member.",
    "replaced_connections": "Connections of the member that a newer one with its name replaced.",
}
MEMBER_TIMES = {
    "last_heard": "When the last message of the member came, in seconds since 1970.",
    "certificate_expires": "When the certificate of the connected member expires, since 1970.",
}
TIME_NAMES = {"certificate_expires": "certificate_expiry"}
# Every cause of a refused connection has a series from the start: an increase from nothing to 1
# would otherwise go unseen.
REFUSAL_CAUSES = (
    Cause.CERTIFICATE,
    Cause.NAME,
    Cause.NOT_LISTED,
    Cause.PROTOCOL_VERSION,
    Cause.OTHER_FEDERATION,
    Cause.HISTORY,
    Cause.QUARANTINED,
    Cause.MASKING_KEY,
    Cause.RECEIVE_LIMIT,
    Cause.CONNECTION_RATE,
    Cause.NO_HELLO,
    Cause.INVALID_MESSAGE,
    Cause.MESSAGE_SIZE,
)


@dataclass(frozen=True)
class Collector:
    """Collects the metrics of one new snapshot at each scrape."""

    snapshot: Callable[[], FederationStatus]

    def collect(self) -> "Iterator[Metric]":
        status = self.snapshot()
        yield from _federation_metrics(status)
        yield from _member_metrics(status.members)


def _federation_metrics(status: FederationStatus) -> "Iterator[Metric]":
    from prometheus_client import core

    keys = ("federation", "environment", "mode", "software")
    about = {key: getattr(status, key) for key in keys}
    yield core.InfoMetricFamily("fedhql_federation", "Federation, environment, mode.", about)
    connected = sum(member.state == "connected" for member in status.members)
    waited = status.waiting.seconds if status.waiting and status.waiting.is_shown else 0.0
    deadline = status.exchange_deadline_seconds
    for name, meaning, value in (
        ("round", "Number of rounds so far.", status.round),
        ("quorum_members", "Number of members that an exchange needs.", status.quorum),
        ("members_expected", "Listed members, or known ones if none is listed.",
         status.members_expected),
        ("members_connected", "Members that are connected and not late.", connected),
        ("waiting_seconds", "How long the server has waited for members; 0 below 2 s.", waited),
        ("exchange_deadline_seconds", "Time that a member has for an answer.", deadline),
        ("env_steps_per_member", "Env step budget per member.", status.env_steps_per_member),
        ("uptime_seconds", "Seconds since the server started.", status.uptime_seconds),
        ("q_spread", "Spread of Q over members in the last round.", status.spread),
        ("td_error", "TD error in the last round.", status.td_error),
        ("loss", "Loss in the last round.", status.loss),
    ):  # fmt: skip
        if value is not None:
            yield core.GaugeMetricFamily(f"fedhql_{name}", meaning, value)
    for name, meaning, count in (
        ("improvements", "Improvements sent to members.", status.improvements),
        ("server_env_steps", "Env steps that the server took.", status.server_env_steps),
    ):
        yield core.CounterMetricFamily(f"fedhql_{name}", meaning, count)
    refused = core.CounterMetricFamily(
        "fedhql_refused_connections", "Refused connections since the start.", labels=["cause"]
    )
    counts = {Cause.Name(cause).lower(): 0 for cause in REFUSAL_CAUSES}
    for cause, count in (counts | dict(status.refused_connections)).items():
        refused.add_metric([cause], count)
    yield refused
    yield core.HistogramMetricFamily(
        "fedhql_exchange_duration_seconds",
        "Time from sending a query to the last answer that the server waited for.",
        [("+Inf" if math.isinf(b) else str(float(b)), n) for b, n in status.exchanges.buckets],
        status.exchanges.total_seconds,
    )


def _member_metrics(members: Sequence[MemberStatus]) -> "Iterator[Metric]":
    from prometheus_client import core

    def gauge(name: str, meaning: str, values: Iterable[float | None]) -> "Metric":
        metric = core.GaugeMetricFamily(f"fedhql_member_{name}", meaning, labels=["member"])
        for member, value in zip(members, values, strict=True):
            if value is not None:
                metric.add_metric([member.name], value)
        return metric

    for state, meaning in STATES.items():
        name = state.replace(" ", "_")
        yield gauge(name, meaning, (member.state == state for member in members))
    for name, meaning in MEMBER_GAUGES.items():
        yield gauge(name, meaning, (getattr(member, name) for member in members))
    for name, meaning in MEMBER_TIMES.items():
        full_name = f"{TIME_NAMES.get(name, name)}_timestamp_seconds"
        yield gauge(full_name, meaning, (_timestamp(getattr(member, name)) for member in members))
    info = core.InfoMetricFamily(
        "fedhql_member", "Software and protocol of connected members.", labels=["member"]
    )
    for member in members:
        if member.protocol:
            about = {"software": member.software, "protocol": member.protocol}
            info.add_metric([member.name], about)
    yield info
    for name, meaning in MEMBER_COUNTERS.items():
        counter = core.CounterMetricFamily(f"fedhql_member_{name}", meaning, labels=["member"])
        for member in members:
            counter.add_metric([member.name], getattr(member, name))
        yield counter


def _timestamp(time: str) -> float | None:
    """Return a time in ISO 8601 as seconds since 1970; None if it is not known."""
    return datetime.fromisoformat(time).timestamp() if time else None

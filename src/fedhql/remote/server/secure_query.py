"""The server side of secure aggregation: query a cohort and read only the sum of its answers."""

from collections.abc import Sequence

from fedhql.contract import States
from fedhql.errors import NoUsableAnswers
from fedhql.federation import Moments
from fedhql.remote.server.exchange import Exchange
from fedhql.remote.server.quorum_query import needed, wait_for_quorum
from fedhql.remote.server.roster import Roster
from fedhql.remote.wire_pb2 import Cause, Goodbye
from fedhql.secure.fixed_point import FixedPoint
from fedhql.secure.masks import NotTheSum, unmasked_sum


async def ask_for_sum(
    roster: Roster, names: Sequence[str], states: States, quorum: int | None = None
) -> tuple[Moments, list[str]]:
    """Return the moments of a cohort's values and the names in the cohort.

    If a member does not answer, the masks that it shares with the others do not cancel, and the sum
    is noise. Then the others are asked again under a new identity. A member that missed a sum is
    not asked while there are enough others. Raise NoUsableAnswers after `quarantine_after` sums
    that do not add up.
    """
    missed, wrong_sums = set[str](), 0
    while True:
        await wait_for_quorum(roster, names, quorum)
        here = roster.available(needed(roster, quorum), names)
        reliable = [name for name in here if name not in missed]
        # With too few reliable members, ask all. Members with unusable answers get quarantined.
        cohort = reliable if len(reliable) >= needed(roster, quorum) else here
        keys = [key for name in cohort if (key := roster.sessions[name].masking_key) is not None]
        # Without all keys it would be a plain exchange, or one whose masks do not cancel.
        assert 0 < len(keys) == len(cohort)
        # A quorum of 0 waits for every member that was asked and is still connected.
        exchange = await roster.hold(dict.fromkeys(cohort, states), 0, keys)
        if len(exchange.answers) == len(cohort):
            try:
                return _moments(roster, exchange, cohort), cohort
            except NotTheSum as error:
                wrong_sums += 1
                _give_up_after(roster.settings.quarantine_after, wrong_sums, error, cohort)
                roster.tell(f"{error}; asking again", level="warning")
                continue
        _disconnect_late_members(roster, exchange)
        missing = [name for name in cohort if name not in exchange.answers]
        roster.tell(
            f"no answer from {', '.join(missing)}; asking the others again", level="warning"
        )
        missed.update(missing)  # else a member that reconnects each time would block this query


def _moments(roster: Roster, exchange: Exchange, cohort: Sequence[str]) -> Moments:
    assert roster.secure_value_bound is not None
    words = unmasked_sum(exchange.answers.values())
    B = len(exchange.states[cohort[0]])
    return FixedPoint(len(cohort), roster.secure_value_bound).moments(words.reshape(2, B, -1))


def _disconnect_late_members(roster: Roster, exchange: Exchange) -> None:
    """Disconnect late members before the next query.

    A late answer would complete the older sum, and its difference from the newer sum is that
    member's own values. The server discards an answer that is already on its way; members have to
    trust it to do so (docs/privacy.md). A late member reconnects with a new key.
    """
    for name in sorted(exchange.waiting):
        session = roster.sessions.get(name)
        if session is not None and session.asked == exchange.number:
            roster.members[name].late_answers += 1
            why = "its answer is late; connect again"
            roster.expel(session, why, Cause.LATE_ANSWER, Goodbye.STOPPED)


def _give_up_after(most: int, wrong_sums: int, error: NotTheSum, cohort: Sequence[str]) -> None:
    if wrong_sums >= most:
        raise NoUsableAnswers(
            f"{error}, {wrong_sums} times in one query; at least one of {', '.join(cohort)} sends "
            "wrong masked answers, and the server cannot tell which"
        )

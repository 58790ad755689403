"""The server's side of secure aggregation: a cohort is asked, and all there is to see is a sum."""

from collections.abc import Sequence

from fedhql.contract import States
from fedhql.errors import NoUsableAnswers
from fedhql.federation import Moments
from fedhql.remote.server.exchange import Exchange
from fedhql.remote.server.quorum_query import wait_for_quorum
from fedhql.remote.server.roster import Roster
from fedhql.remote.wire_pb2 import Goodbye
from fedhql.secure.fixed_point import FixedPoint
from fedhql.secure.masks import NotTheSum, unmasked_sum


async def ask_for_sum(
    roster: Roster, names: Sequence[str], states: States, quorum: int, late: set[str]
) -> tuple[Moments, list[str]]:
    """Moments of the values of those who answered together, and who they are.

    With anybody missing, the masks that it shares with the others are left in their sum, and it
    says nothing. Then the others are asked again, under a new identity. Whoever is late joins the
    `late`, who are not asked while there are enough others.
    """
    missed, in_vain = set[str](), 0
    while True:
        await wait_for_quorum(roster, names, quorum)
        here = [name for name in roster.present() if name in names]
        reliable = [name for name in here if name not in missed | late]
        # If these are too few, all are asked: one with nothing to answer until it is quarantined.
        cohort = reliable if len(reliable) >= quorum else here
        keys = [key for name in cohort if (key := roster.sessions[name].masking_key) is not None]
        # Else it would be a plain exchange, or one whose masks do not cancel.
        assert 0 < len(keys) == len(cohort)
        # A quorum of 0: everybody who was asked, and is still there, is waited for.
        exchange = await roster.hold(dict.fromkeys(cohort, states), 0, keys)
        if len(exchange.answers) == len(cohort):
            try:
                return _moments(roster, exchange, cohort), cohort
            except NotTheSum as error:
                in_vain += 1
                _give_up_after(roster.settings.quarantine_after, in_vain, error, cohort)
                roster.tell(f"{error}: asked again", level="warning")
                continue
        late |= _late_ones_sent_away(roster, exchange)
        missing = [name for name in cohort if name not in exchange.answers]
        roster.tell(
            f"no answer of {', '.join(missing)}: the others are asked again", level="warning"
        )
        missed.update(missing)  # one that came back each time would hold up this question for ever


def _moments(roster: Roster, exchange: Exchange, cohort: Sequence[str]) -> Moments:
    assert roster.secure_value_bound is not None
    words = unmasked_sum(exchange.answers.values())
    B = len(exchange.states[cohort[0]])
    return FixedPoint(len(cohort), roster.secure_value_bound).moments(words.reshape(2, B, -1))


def _late_ones_sent_away(roster: Roster, exchange: Exchange) -> set[str]:
    """Before anybody is asked again: they come back with new keys.

    An answer that came after all would complete the older sum, and its difference from the newer
    one is that member's own values. What is on its way already still arrives; it is thrown away
    unread, and that this is done is the server's word (docs/privacy.md).
    """
    late = set[str]()
    for name in sorted(exchange.waiting):
        session = roster.sessions.get(name)
        if session is not None and session.asked == exchange.number:
            roster.members[name].late_answers += 1
            roster.expel(session, "its answer is late; come again", Goodbye.STOPPED)
            late.add(name)
    return late


def _give_up_after(most: int, in_vain: int, error: NotTheSum, cohort: Sequence[str]) -> None:
    if in_vain >= most:
        raise NoUsableAnswers(
            f"{error}, {in_vain} times in a row: one of {', '.join(cohort)} masks otherwise than "
            "the others, and nobody can see which"
        )

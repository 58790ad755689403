"""The quorum query: ask members for their values until a quorum of them has answered."""

from collections.abc import Collection, Mapping
from typing import Any

from numpy.typing import NDArray

from fedhql.contract import Values
from fedhql.remote.server.exchange import TooFew
from fedhql.remote.server.roster import Roster


async def ask(roster: Roster, states: Mapping[str, NDArray[Any]], quorum: int) -> dict[str, Values]:
    """Return the values of each member that gave a usable answer in time.

    `states` holds the states for each member. The query repeats under a new identity until
    `quorum` members have answered. Raise TooFew if another round could go on with other members.
    """
    assert roster.secure_value_bound is None  # secure aggregation needs `ask_for_sum`
    while True:
        await wait_for_quorum(roster, states, quorum)
        exchange = await roster.hold(states, quorum)
        if len(exchange.answers) >= quorum:
            return exchange.answers
        roster.tell(
            f"only {len(exchange.answers)} usable answers, but {quorum} are needed; asking again",
            level="warning",
        )
        if roster.is_ending or any(name not in states for name in roster.available()):
            raise TooFew


async def wait_for_quorum(roster: Roster, names: Collection[str], quorum: int) -> None:
    """Wait until `quorum` of the named members are available.

    Raise TooFew if that takes longer than the exchange deadline and enough other members are
    available, or longer than the learning deadline and the federation is ending.
    """

    def missing() -> list[str]:
        return sorted(set(names) - set(roster.available(quorum)))

    def enough() -> bool:
        return len(names) - len(missing()) >= quorum

    if enough():
        return
    roster.tell(
        f"waiting for members: {quorum} are needed, and {', '.join(missing())} are away or late",
        level="warning",
    )
    with roster.waits.waiting(f"{quorum} members are needed", missing):
        if not await roster.wait_until(enough, roster.settings.exchange_deadline_seconds):
            await roster.wait_until(
                lambda: enough() or len(roster.available(quorum)) >= quorum,
                roster.settings.learning_deadline_seconds if roster.is_ending else None,
            )
            if not enough():
                raise TooFew

"""Members asked for their values, again and again, until there are enough of them."""

from collections.abc import Collection, Mapping
from typing import Any

from numpy.typing import NDArray

from fedhql.contract import Values
from fedhql.remote.server.exchange import TooFew
from fedhql.remote.server.roster import Roster


async def ask(roster: Roster, states: Mapping[str, NDArray[Any]], quorum: int) -> dict[str, Values]:
    """Everybody's values at their states, of those who gave usable ones in time.

    Again and again, under new identities, until there are `quorum` of them; or TooFew.
    """
    assert roster.secure_value_bound is None  # then there is no asking without a cohort
    while True:
        await wait_for_quorum(roster, states, quorum)
        exchange = await roster.hold(states, quorum)
        if len(exchange.answers) >= quorum:
            return exchange.answers
        roster.tell(
            f"only {len(exchange.answers)} usable answers, {quorum} are needed: asked again",
            level="warning",
        )
        if any(name not in states for name in roster.present()):
            raise TooFew


async def wait_for_quorum(roster: Roster, names: Collection[str], quorum: int) -> None:
    """Of those; TooFew if it takes too long and others are there."""

    def enough() -> bool:
        return sum(name in names for name in roster.present()) >= quorum

    if enough():
        return
    roster.tell(f"waiting for members: {quorum} are needed", level="warning")
    if not await roster.wait_until(enough, roster.settings.exchange_deadline_seconds):
        await roster.wait_until(lambda: enough() or len(roster.present()) >= quorum)
        if not enough():
            raise TooFew

"""The quorum query: ask members for their values until a quorum of them has answered."""

from collections.abc import Collection, Mapping
from typing import Any

from numpy.typing import NDArray

from fedhql.remote.server.exchange import Exchange, TooFew
from fedhql.remote.server.roster import Roster


async def ask(
    roster: Roster,
    states: Mapping[str, NDArray[Any]],
    quorum: int | None = None,
    *,
    act: bool = False,
) -> Exchange:
    """Return the exchange with the values of each member that gave a usable answer in time.

    `states` holds the states for each member. The query repeats under a new identity until
    `quorum` members have answered; None stands for the setting, which may change meanwhile. With
    `act`, members also say how their agents act. Raise TooFew if another round could go on with
    other members.
    """
    assert roster.secure_value_bound is None  # secure aggregation needs `ask_for_sum`
    while True:
        await wait_for_quorum(roster, states, quorum)
        exchange = await roster.hold(states, needed(roster, quorum), act=act)
        answers = len(exchange.answers)
        if answers >= needed(roster, quorum):
            return exchange
        roster.tell(
            f"only {answers} usable answers, but {needed(roster, quorum)} are needed; asking again",
            level="warning",
        )
        if roster.is_ending or any(name not in states for name in roster.available()):
            raise TooFew


def needed(roster: Roster, quorum: int | None) -> int:
    return roster.settings.quorum if quorum is None else quorum


async def wait_for_quorum(
    roster: Roster, names: Collection[str], quorum: int | None = None
) -> None:
    """Wait until `quorum` of the named members are available.

    Raise TooFew if that takes longer than the exchange deadline and enough other members are
    available, or longer than the learning deadline and the federation is ending.
    """

    def missing() -> list[str]:
        return sorted(set(names) - set(roster.available(needed(roster, quorum), names)))

    def enough() -> bool:
        return len(names) - len(missing()) >= needed(roster, quorum)

    def others() -> bool:
        return len(roster.available(needed(roster, quorum))) >= needed(roster, quorum)

    if enough():
        return
    roster.tell(
        f"waiting for members: need {needed(roster, quorum)}; away or late: {', '.join(missing())}",
        level="warning",
    )
    with roster.waits.waiting(f"{needed(roster, quorum)} members are needed", missing):
        if not await roster.wait_until(enough, roster.settings.exchange_deadline_seconds):
            await roster.wait_until(
                lambda: enough() or others(),
                roster.settings.learning_deadline_seconds if roster.is_ending else None,
            )
            if not enough():
                raise TooFew

"""Members asked for their values, again and again, until there are enough of them."""

from collections.abc import Collection, Mapping
from typing import Any

from numpy.typing import NDArray

from fedhql.contract import Values
from fedhql.remote.exchange import TooFew
from fedhql.remote.hub import Hub


async def ask(hub: Hub, states: Mapping[str, NDArray[Any]], quorum: int) -> dict[str, Values]:
    """Everybody's values at their states, of those who gave usable ones in time.

    Again and again, under new identities, until there are `quorum` of them; or TooFew.
    """
    assert hub.secure_value_bound is None  # then there is no asking without a cohort
    while True:
        await wait_for_quorum(hub, states, quorum)
        exchange = await hub.hold(states, quorum)
        if len(exchange.answers) >= quorum:
            return exchange.answers
        hub.tell(
            f"only {len(exchange.answers)} usable answers, {quorum} are needed: asked again",
            level="warning",
        )
        if any(name not in states for name in hub.present()):
            raise TooFew


async def wait_for_quorum(hub: Hub, names: Collection[str], quorum: int) -> None:
    """Of those; TooFew if it takes too long and others are there."""

    def enough() -> bool:
        return sum(name in names for name in hub.present()) >= quorum

    if enough():
        return
    hub.tell(f"waiting for members: {quorum} are needed", level="warning")
    if not await hub.wait_until(enough, hub.settings.exchange_deadline_seconds):
        await hub.wait_until(lambda: enough() or len(hub.present()) >= quorum)
        if not enough():
            raise TooFew

"""The latest improvements, kept for members that missed some. Members skip older ones."""

from collections import deque
from collections.abc import Iterable

from fedhql.remote.wire import MOST_BYTES_TO_A_MEMBER, fingerprint
from fedhql.remote.wire_pb2 import Improvement, Order, OrderId

# All kept improvements go out in one message, which also needs space for a question.
MOST_BYTES = MOST_BYTES_TO_A_MEMBER // 2


class CatchUpWindow:
    """The latest improvements: at most `most`, and together at most MOST_BYTES if more than one."""

    def __init__(self, kept: Iterable[Improvement], last: int, most: int) -> None:
        self.last = last  # the number of the newest improvement, kept or not
        self._most, self._bytes = most, 0
        self._kept: deque[Improvement] = deque()
        for improvement in kept:
            self.add(improvement)

    def add(self, improvement: Improvement) -> int:
        """Add the newest improvement; return the number of the oldest one that is still kept."""
        self._kept.append(improvement)
        self._bytes += improvement.ByteSize()
        self.last = improvement.number
        while len(self._kept) > self._most or (self._bytes > MOST_BYTES and len(self._kept) > 1):
            self._bytes -= self._kept.popleft().ByteSize()
        return self._kept[0].number

    def order(self, id_: OrderId, applied: int) -> Order:
        """Build an order with every kept improvement after number `applied`.

        `skip_through` in the order is the last number that the member must skip, or 0.
        """
        missing = [improvement for improvement in self._kept if improvement.number > applied]
        kept_from = missing[0].number if missing else self.last + 1
        return Order(
            id=id_,
            improvements=missing,
            skip_through=kept_from - 1 if applied < kept_from - 1 else 0,
        )

    def fingerprint(self, number: int) -> int:
        """Return the fingerprint of the improvement with that number; 0 if it is not kept."""
        found = (improvement for improvement in self._kept if improvement.number == number)
        return next(map(fingerprint, found), 0)

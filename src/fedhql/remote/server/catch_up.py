"""The last improvements, for members that have missed some; older ones they skip, and say so."""

from collections import deque
from collections.abc import Iterable

from fedhql.remote.wire import MOST_BYTES_TO_A_MEMBER, fingerprint
from fedhql.remote.wire_pb2 import Improvement, Order, OrderId

# They go out in one message, and a question has to fit in beside them.
MOST_BYTES = MOST_BYTES_TO_A_MEMBER // 2


class CatchUpWindow:
    """As many as were asked for, and no more than a message can take."""

    def __init__(self, kept: Iterable[Improvement], last: int, most: int) -> None:
        self.last = last  # the number of the newest there ever was
        self._most, self._bytes = most, 0
        self._kept: deque[Improvement] = deque()
        for improvement in kept:
            self.add(improvement)

    def add(self, improvement: Improvement) -> int:
        """-> the number of the oldest that is kept now."""
        self._kept.append(improvement)
        self._bytes += improvement.ByteSize()
        self.last = improvement.number
        while len(self._kept) > self._most or (self._bytes > MOST_BYTES and len(self._kept) > 1):
            self._bytes -= self._kept.popleft().ByteSize()
        return self._kept[0].number

    def order(self, id_: OrderId, applied: int) -> Order:
        """With every improvement after `applied`; what is no longer kept is to be skipped."""
        missing = [improvement for improvement in self._kept if improvement.number > applied]
        kept_from = missing[0].number if missing else self.last + 1
        return Order(
            id=id_,
            improvements=missing,
            skip_through=kept_from - 1 if applied < kept_from - 1 else 0,
        )

    def fingerprint(self, number: int) -> int:
        """Of the improvement with that number; 0 if it is not kept."""
        found = (improvement for improvement in self._kept if improvement.number == number)
        return next(map(fingerprint, found), 0)

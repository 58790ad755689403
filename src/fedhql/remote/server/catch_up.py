"""The latest improvements, kept for members that missed some. Members skip older ones."""

from collections import deque
from collections.abc import Iterable

from fedhql.remote.wire import fingerprint
from fedhql.remote.wire_pb2 import Improvement, Order, OrderId

MOST_BYTES = 128 * 1024 * 1024  # of memory for all kept improvements
PIECE_BYTES = 4 * 1024 * 1024  # of improvements in one order, so that none takes long to send
FRAME_BYTES = 8  # of protobuf around each improvement


class CatchUpWindow:
    """The latest improvements: at most `most`, and together at most MOST_BYTES if more than one."""

    def __init__(self, kept: Iterable[Improvement], last: int, most: int) -> None:
        self.last = last  # the number of the newest improvement, kept or not
        self.most = most
        self._bytes = 0
        self._kept: deque[Improvement] = deque()
        for improvement in kept:
            self.add(improvement)

    def add(self, improvement: Improvement) -> int:
        """Add the newest improvement; return the number of the oldest one that is still kept."""
        self._kept.append(improvement)
        self._bytes += improvement.ByteSize()
        self.last = improvement.number
        while len(self._kept) > self.most or (self._bytes > MOST_BYTES and len(self._kept) > 1):
            self._bytes -= self._kept.popleft().ByteSize()
        return self._kept[0].number

    def order(self, id_: OrderId, applied: int, room_bytes: int) -> tuple[Order, int]:
        """Build an order with the kept improvements after number `applied`, as many as fit.

        At least one goes in. `skip_through` in the order is the last number that the member must
        skip, or 0. Also return the number that the member has reached after the order.
        """
        order = Order(id=id_)
        first = max(applied + 1, self._first)
        if first > applied + 1:
            order.skip_through = first - 1
        size, reached = 0, first - 1
        while reached < self.last:
            improvement = self._kept[reached + 1 - self._first]
            size += improvement.ByteSize() + FRAME_BYTES
            if size > min(room_bytes, PIECE_BYTES) and order.improvements:
                break
            order.improvements.append(improvement)
            reached += 1
        return order, reached

    @property
    def _first(self) -> int:
        """The number of the oldest improvement that is kept."""
        return self.last + 1 - len(self._kept)

    def fingerprint(self, number: int) -> int:
        """Return the fingerprint of the improvement with that number; 0 if it is not kept."""
        if not self._first <= number <= self.last:
            return 0
        return fingerprint(self._kept[number - self._first])

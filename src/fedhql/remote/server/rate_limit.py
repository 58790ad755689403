"""Rate limits on the connections and messages of one member."""

from collections.abc import Callable
from dataclasses import dataclass

CONNECTIONS_AT_ONCE, CONNECTIONS_PER_SECOND = 20, 1.0


class RateLimit:
    """A token bucket that refills at `per_second` and holds at most `at_once` tokens."""

    def __init__(self, per_second: float, at_once: float, clock: Callable[[], float]) -> None:
        self.per_second, self._at_once, self._clock = per_second, at_once, clock
        self._left, self._at = at_once, clock()

    def take(self) -> float:
        """Take one token and return 0; if there is none, return the seconds until there is one."""
        now = self._clock()
        self._left = min(self._at_once, self._left + (now - self._at) * self.per_second)
        self._at = now
        if self._left < 1:
            return (1 - self._left) / self.per_second
        self._left -= 1
        return 0.0


@dataclass
class MemberLimits:
    """The rate limits of one member, shared by all its connections."""

    connections: RateLimit
    messages: RateLimit
    exceeded: bool = False  # the last connection was over the limit; repeats are not logged


def new_limits(messages_per_second: float, clock: Callable[[], float]) -> MemberLimits:
    return MemberLimits(
        RateLimit(CONNECTIONS_PER_SECOND, CONNECTIONS_AT_ONCE, clock),
        RateLimit(messages_per_second, max(2 * messages_per_second, 1), clock),
    )

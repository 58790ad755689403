"""How often one member may connect and speak."""

from collections.abc import Callable
from dataclasses import dataclass


class RateLimit:
    """A bucket that fills at `per_second` and holds `at_once`."""

    def __init__(self, per_second: float, at_once: float, clock: Callable[[], float]) -> None:
        self._per_second, self._at_once, self._clock = per_second, at_once, clock
        self._left, self._at = at_once, clock()

    def take(self) -> bool:
        now = self._clock()
        self._left = min(self._at_once, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


@dataclass
class MemberLimits:
    """Of one member, over all its connections: a new one brings no new limits."""

    connections: RateLimit
    messages: RateLimit
    exceeded: bool = False  # which is told once, not at every try

"""A condition variable for one event loop, with a timeout and a stop signal."""

import asyncio
from collections.abc import Callable


class Stopped(Exception):
    """The server was told to stop. The journal holds the work that is finished."""


class Condition:
    """Wakes its waiters after every change; each checks its own predicate again."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waiting: set[asyncio.Future[None]] = set()
        self._stopping = False

    def notify(self) -> None:
        for wakeup in self._waiting:
            _wake(wakeup)

    def stop(self) -> None:
        """Make every present and future `wait_until` raise Stopped."""
        self._stopping = True
        self.notify()

    async def wait_until(self, reached: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until `reached` holds; return False after `seconds`. Raise Stopped after `stop`."""
        deadline = None if seconds is None else self._clock() + seconds
        while True:
            if self._stopping:  # checked first: a stop disconnects all, which can satisfy `reached`
                raise Stopped
            if reached():
                return True
            left = None if deadline is None else deadline - self._clock()
            if left is not None and left <= 0:
                return False
            await self._next(left)

    async def _next(self, seconds: float | None) -> None:
        """Wait for the next `notify`, at most `seconds`, without the task of `asyncio.wait_for`."""
        loop = asyncio.get_running_loop()
        wakeup: asyncio.Future[None] = loop.create_future()
        self._waiting.add(wakeup)
        timer = None if seconds is None else loop.call_later(seconds, _wake, wakeup)
        try:
            await wakeup
        finally:
            self._waiting.discard(wakeup)
            if timer is not None:
                timer.cancel()


def _wake(wakeup: asyncio.Future[None]) -> None:
    if not wakeup.done():
        wakeup.set_result(None)

"""Waiting in an event loop until something is so, without looking all the time."""

import asyncio
from collections.abc import Callable


class Stopped(Exception):
    """The server has been told to stop; what it was doing is in the journal as far as it got."""


class Condition:
    """Whoever waits looks again after every change."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waiting: set[asyncio.Future[None]] = set()
        self._stopping = False

    def notify(self) -> None:
        for change in self._waiting:
            _settle(change)

    def stop(self) -> None:
        """Nothing will be reached any more."""
        self._stopping = True
        self.notify()

    async def wait_until(self, reached: Callable[[], bool], seconds: float | None = None) -> bool:
        """Whether it was, in that time."""
        deadline = None if seconds is None else self._clock() + seconds
        while True:
            if self._stopping:  # first: that everybody is sent away is not what is waited for
                raise Stopped
            if reached():
                return True
            left = None if deadline is None else deadline - self._clock()
            if left is not None and left <= 0:
                return False
            await self._next(left)

    async def _next(self, seconds: float | None) -> None:
        """Change, or that long. (`asyncio.wait_for` would cost a task for each exchange.)"""
        loop = asyncio.get_running_loop()
        change: asyncio.Future[None] = loop.create_future()
        self._waiting.add(change)
        timer = None if seconds is None else loop.call_later(seconds, _settle, change)
        try:
            await change
        finally:
            self._waiting.discard(change)
            if timer is not None:
                timer.cancel()


def _settle(change: asyncio.Future[None]) -> None:
    if not change.done():
        change.set_result(None)
